//! `inspect validate` without an engine: what is said before anything is run.

use crate::common::run;

const MODEL: [&str; 4] = ["validate", "fixtures/mlp.pt", "--input", "2x16"];

#[test]
fn usage() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("no.pickle");
    std::fs::write(&text, "no snapshot").unwrap();
    let text = text.display().to_string();
    check!("validate_no_input", run(&["validate", "fixtures/mlp.pt"]));
    check!(
        "validate_device_and_snapshot",
        run(&[&MODEL[..], &["--device", "cuda", "--snapshot", "s.pickle"]].concat())
    );
    check!(
        "validate_tolerance",
        run(&[&MODEL[..], &["--tolerance", "much"]].concat())
    );
    check!(
        "validate_no_snapshot",
        run(&[&MODEL[..], &["--snapshot", &text]].concat())
    );
    check!(
        "validate_no_code",
        run(&["validate", "fixtures/cnn.safetensors", "--input", "2x16"])
    );
}
