use clap::Parser;

use super::*;

fn resolve(args: &[&str]) -> Result<Command, clap::Error> {
    Cli::try_parse_from(std::iter::once("inspect").chain(args.iter().copied())).map(Cli::resolve)
}

fn inspect(args: &[&str]) -> Inspect {
    match resolve(args) {
        Ok(Command::Inspect(inspect)) => *inspect,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_needs_no_command() {
    assert_eq!(inspect(&["a.pt", "b.pt"]).files.len(), 2);
    assert!(inspect(&["a.pt"]).run.is_none());
    assert_eq!(inspect(&["./doctor"]).files, [PathBuf::from("./doctor")]);
    assert!(matches!(
        resolve(&["doctor"]),
        Ok(Command::Doctor { json: false })
    ));
    assert!(matches!(
        resolve(&["doctor", "-q"]),
        Ok(Command::Doctor { .. })
    ));
    assert!(resolve(&[]).is_err());
}

#[test]
fn inputs_make_a_run() {
    let run = inspect(&["a.pt", "--input", "1x3", "--input", "n=-1"])
        .run
        .unwrap();
    assert!(matches!(run.inputs, RunInputs::Specs(specs) if specs.len() == 2));
    assert_eq!(
        (run.method.as_str(), run.mode),
        ("forward", Mode::Inference)
    );
    let run = inspect(&[
        "a.pt",
        "--inputs",
        "x.pt",
        "--train",
        "--optimizer",
        "adamw",
    ])
    .run;
    assert!(matches!(run.unwrap().mode, Mode::Training { steps: 2, .. }));
}

#[test]
fn contradictions_are_clap_errors() {
    for args in [
        &["a.pt", "--input", "1x3", "--inputs", "x.pt"][..],
        &["a.pt", "--optimizer", "adam"],
        &["a.pt", "--save-trace", "t", "--no-run"],
        &["a.pt", "--input", "1x3", "--no-sim", "--basis", "cpu-trace"],
        &["fit", "a.pt", "--input", "Bx3"],
        &["fit", "a.pt", "--memory", "8GiB"],
        &["fit", "a.pt", "--input", "Bx3:floaty", "--memory", "8GiB"],
        &["a.pt", "--input", "1x3", "--optimizer", "adam"],
        &["a.pt", "--ops", "--no-run"],
        &["a.pt", "-q", "-v"],
        &["a.pt", "--filter", "("],
        &["a.pt", "--depth", "0"],
        &["a.pt", "--as", "float33"],
        &["a.pt", "--input", "1x3:floaty"],
    ] {
        assert!(resolve(args).is_err(), "{args:?}");
    }
}

#[test]
fn options_of_a_run_are_known_for_that() {
    for option in [
        "--ops",
        "--cast=f16",
        "--autocast=bf16",
        "--weights=w.pt",
        "--lifetimes=python",
        "--no-sim",
        "--bound=safe",
        "--save-trace=t",
        "--save-snapshot=s",
    ] {
        let known = inspect(&["a.pt", option]);
        let name = option.split('=').next();
        assert_eq!(known.needs_run, name);
        assert!(known.sample_run.is_some() && known.run.is_none());
    }
    assert_eq!(inspect(&["a.pt", "--bound", "expected"]).needs_run, None);
}

#[test]
fn a_dash_is_stdout() {
    assert_eq!(inspect(&["a.pt", "-o", "-"]).show.target, Target::Stdout);
    let file = inspect(&["a.pt", "-o", "r.json"]).show.target;
    assert_eq!(file, Target::File("r.json".into()));
}
