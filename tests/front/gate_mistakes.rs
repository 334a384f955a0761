//! `inspect check` and `inspect diff` where something is not as it should be: what users and baselines get wrong, and
//! what nothing limits.

use std::path::Path;

use crate::common::gate::{
    Folder, RUN, add, baseline, budget_folder, engine, in_folder, with_engine,
};
use crate::common::{Said, run};
use serde_json::Value;

const FILE: &str = "fixtures/residual.pt";

#[test]
fn measuring_repeats_the_run_of_the_baseline() {
    let folder = Folder::new();
    let engine = engine("residual.jsonl");
    let base = baseline(&folder, &engine);
    let check = ["check", FILE, "--baseline", &base];
    // Nothing was measured when it was made.
    check!(
        "measured_not_in_baseline",
        with_engine(&engine, &[&check[..], &["--measured"]].concat())
    );
    let update = ["--measured", "--update-baseline"];
    let said = with_engine(&engine, &[&check[..], &update].concat());
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert!(folder.read("base.json").contains("\"input\""));
    for more in [&["--measured"][..], &[]] {
        let said = with_engine(&engine, &[&check[..], more].concat());
        assert_eq!(said.code, Some(0), "{}", said.snapshot());
    }
    // What has no run has nothing to measure.
    let file = folder.path("file.json");
    let check = ["check", FILE, "--baseline", &file];
    let said = run(&[&check[..], &["--update-baseline"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    check!(
        "measured_without_run",
        run(&[&check[..], &["--measured"]].concat())
    );
    let said = run(&[&check[..], &update].concat());
    assert_eq!(said.code, Some(2), "{}", said.snapshot());
    let said = run(&["check", FILE, "--max", "file_bytes=1MB", "--measured"]);
    assert_eq!(said.code, Some(2), "{}", said.snapshot());
}

#[test]
fn a_number_that_nobody_counts_is_refused() {
    let folder = Folder::new();
    let engine = engine("residual.jsonl");
    let base = baseline(&folder, &engine);
    let renamed = |from: &str, to: &str| {
        folder.changed("base.json", "renamed.json", |value| {
            let metrics = value["metrics"].as_object_mut().unwrap();
            let number = metrics.remove(from).unwrap();
            metrics.insert(to.to_owned(), number);
        })
    };
    let against = |base: &str| with_engine(&engine, &["check", FILE, "--baseline", base]);
    let misspelled = renamed("peak_reserved_bytes", "peak_reserverd_bytes");
    check!("metric_misspelled", against(&misspelled));
    for (from, to, nearest) in [
        ("file_bytes", "file", "`file_bytes`"),
        (
            "peak_reserved_bytes.forward",
            "peak_reserved_bytes.foward",
            "`peak_reserved_bytes.forward`",
        ),
        (
            "parameters.float32",
            "parameters.flaot32",
            "`parameters.float32`",
        ),
        ("flops", "zzz", "writes it anew"),
    ] {
        let said = against(&renamed(from, to));
        assert_eq!(said.code, Some(2), "{}", said.snapshot());
        for text in [format!("`{to}`").as_str(), nearest] {
            assert!(said.stderr.contains(text), "{text}: {}", said.stderr);
        }
    }
    // Writing it anew keeps its run.
    let update = [
        "check",
        FILE,
        "--baseline",
        &misspelled,
        "--update-baseline",
    ];
    let said = with_engine(&engine, &update);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert_eq!(folder.read("renamed.json"), folder.read("base.json"));
    assert_eq!(against(&base).code, Some(0));
}

/// What fails an improvement is said in every format.
#[test]
fn a_strict_failure_says_why() {
    let folder = Folder::new();
    let engine = engine("residual.jsonl");
    baseline(&folder, &engine);
    let larger = folder.changed("base.json", "larger.json", |value| {
        add(&mut value["metrics"], "peak_reserved_bytes", 2 << 20);
    });
    let args = ["check", FILE, "--baseline", &larger, "--strict", "--format"];
    for (format, text) in [
        (
            "table",
            "fail: the baseline is out of date (`--strict`), 1 improved",
        ),
        ("markdown", "the baseline is out of date (`--strict`)"),
        ("json", "\"reasons\": [\"outdated-baseline\"]"),
        ("junit", "type=\"outdated-baseline\""),
        ("sarif", "\"ruleId\": \"outdated-baseline\""),
    ] {
        let said = with_engine(&engine, &[&args[..], &[format]].concat());
        assert_eq!(said.code, Some(1), "{}", said.snapshot());
        assert!(said.stdout.contains(text), "{text}: {}", said.stdout);
    }
    let said = run(&[
        "check",
        "fixtures/hostile/os_system.pt",
        "--max",
        "file_bytes=1MB",
    ]);
    assert!(
        said.stdout.contains("fail: it is dangerous to load"),
        "{}",
        said.stdout
    );
}

#[test]
fn the_hint_fits_what_failed() {
    let folder = Folder::new();
    let engine = engine("residual.jsonl");
    baseline(&folder, &engine);
    let smaller = folder.changed("base.json", "smaller.json", |value| {
        add(&mut value["metrics"], "flops", -1000);
    });
    let base = folder.path("base.json");
    let hints = |baseline: &str, limits: &[&str]| {
        let said = with_engine(
            &engine,
            &[&["check", FILE, "--baseline", baseline], limits].concat(),
        );
        assert_eq!(said.code, Some(1), "{}", said.snapshot());
        said.stderr
    };
    let small = ["--max", "file_bytes=1KB"];
    let absolute = hints(&base, &small);
    assert_eq!(
        absolute,
        "hint: make the file smaller, or raise `--max file_bytes`\n"
    );
    let of_run = hints(&base, &["--max", "flops=1k", "--max", "peak_reserved=1KiB"]);
    assert_eq!(
        of_run,
        "hint: make the run need less, or raise `--max` of `flops`, `peak_reserved_bytes`\n"
    );
    let relative = hints(&smaller, &[]);
    assert!(
        relative.contains("`--update-baseline` accepts it"),
        "{relative}"
    );
    assert!(!relative.contains("smaller"), "{relative}");
    let both = hints(&smaller, &small);
    assert!(
        both.contains("accepts it") && both.contains("raise `--max"),
        "{both}"
    );
    assert_eq!(both.matches("hint:").count(), 1, "{both}");
    let folder = budget_folder();
    folder.write(
        "budgets.json",
        r#"[{"files": "mlp.pt", "max": {"file_bytes": "1KiB"}}]"#,
    );
    let said = in_folder(&folder, &["check", "--budget", "budgets.json"]);
    assert_eq!(
        said.stderr,
        "hint: make the file smaller, or raise the limit of `file_bytes` in `budgets.json`\n"
    );
}

/// The figures of a run that ended early are not taken for what it needs.
#[test]
fn what_was_held_when_memory_ran_out_is_said_so() {
    let engine = engine("residual.jsonl");
    let args = [&[FILE, "--memory", "1KiB"], &RUN[..]].concat();
    let said = with_engine(&engine, &args);
    assert_eq!(said.code, Some(1), "{}", said.snapshot());
    assert!(
        said.stdout.contains("reserved when memory ran out"),
        "{}",
        said.stdout
    );
    let args = [&[FILE, "--memory", "1GiB"], &RUN[..]].concat();
    let said = with_engine(&engine, &args);
    assert!(
        said.stdout.contains("reserved at the peak"),
        "{}",
        said.stdout
    );
}

#[test]
fn how_long_values_live_is_never_ignored() {
    let said = run(&[FILE, "--lifetimes", "python"]);
    assert_eq!(said.code, Some(2), "{}", said.snapshot());
    assert!(said.stderr.contains("--input"), "{}", said.stderr);
    let engine = engine("residual.jsonl");
    let words = "values live as long as the variables of an eager Python module";
    let python = [&[FILE, "--lifetimes", "python"], &RUN[..]].concat();
    let said = with_engine(&engine, &python);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert!(said.stdout.contains(words), "{}", said.stdout);
    let said = with_engine(&engine, &[&[FILE], &RUN[..]].concat());
    assert!(!said.stdout.contains(words), "{}", said.stdout);
}

fn one_document(said: &Said, format: &str) {
    match format {
        "json" | "sarif" => {
            serde_json::from_str::<Value>(&said.stdout).unwrap();
        }
        "junit" => {
            quick_junit::Report::deserialize(said.stdout.as_bytes()).unwrap();
        }
        _ => {}
    }
}

#[test]
fn a_file_without_a_budget_passes_unless_all_must_have_one() {
    let folder = budget_folder();
    folder.write(
        "budgets.json",
        r#"[{"files": "mlp.pt", "max": {"file_bytes": "1MB"}}]"#,
    );
    let args = ["check", "--budget", "budgets.json", "slack.pt", "--format"];
    for (format, passes, strictly) in [
        ("table", "budget_none", "budget_none_strict"),
        ("json", "budget_none_json", "budget_none_json_strict"),
        (
            "markdown",
            "budget_none_markdown",
            "budget_none_markdown_strict",
        ),
        ("junit", "budget_none_junit", "budget_none_junit_strict"),
        ("sarif", "budget_none_sarif", "budget_none_sarif_strict"),
    ] {
        let args = [&args[..], &[format]].concat();
        let said = in_folder(&folder, &args);
        assert_eq!(said.code, Some(0), "{}", said.snapshot());
        one_document(&said, format);
        insta::allow_duplicates! { check!(passes, said); }
        let said = in_folder(&folder, &[&args[..], &["--strict"]].concat());
        assert_eq!(said.code, Some(1), "{}", said.snapshot());
        one_document(&said, format);
        insta::allow_duplicates! { check!(strictly, said); }
    }
    // A slip of the pen is no file without a budget.
    for format in ["table", "json", "junit", "sarif"] {
        let args = [
            "check",
            "--budget",
            "budgets.json",
            "slakc.pt",
            "--format",
            format,
        ];
        let said = in_folder(&folder, &args);
        assert_eq!(said.code, Some(2), "{}", said.snapshot());
        assert!(
            said.stderr.contains("cannot open `slakc.pt`"),
            "{}",
            said.stderr
        );
        one_document(&said, format);
    }
}

/// The hook of the README, run as pre-commit runs it: with those of the files of a commit whose name matches.
#[test]
fn the_hook_of_the_readme_works() {
    let readme = std::fs::read_to_string("README.md").unwrap();
    let (_, section) = readme.split_once("### Before a commit").unwrap();
    let value = |key: &str| {
        let line = section
            .lines()
            .find_map(|line| line.trim().strip_prefix(key));
        line.unwrap().trim().to_owned()
    };
    let matches = regex::Regex::new(&value("files:")).unwrap();
    let entry = value("entry:");
    let hook: Vec<&str> = entry.split_whitespace().skip(1).collect();
    assert!(entry.starts_with("inspect check "), "{entry}");
    let folder = budget_folder();
    folder.write("notes.txt", "");
    folder.write(
        "budgets.json",
        r#"[{"files": "mlp.pt", "max": {"file_bytes": "10KiB"}}]"#,
    );
    let commit = |files: &[&str]| {
        let files = files.iter().filter(|file| matches.is_match(file));
        let args: Vec<&str> = hook.iter().copied().chain(files.copied()).collect();
        in_folder(&folder, &args)
    };
    let said = commit(&["notes.txt", "slack.pt"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    let said = commit(&["notes.txt", "slack.pt", "mlp.pt"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert!(
        said.stdout.contains("mlp.pt  pass: 1 number"),
        "{}",
        said.stdout
    );
    let larger = Path::new("fixtures/tiny_cnn.pt");
    std::fs::copy(larger, folder.0.path().join("mlp.pt")).unwrap();
    let said = commit(&["mlp.pt"]);
    assert_eq!(said.code, Some(1), "{}", said.snapshot());
}

#[test]
fn a_baseline_needs_a_folder() {
    let folder = budget_folder();
    for args in [
        &["--baseline", "no/such/base.json", "--update-baseline"][..],
        &["--max", "file_bytes=1MB", "-o", "no/such/base.json"],
    ] {
        let said = in_folder(&folder, &[&["check", "mlp.pt"], args].concat());
        assert_eq!(
            (said.code, said.stderr.as_str()),
            (
                Some(2),
                "error: `no/such/base.json` cannot be written: there is no folder `no/such`\n\n\
                 hint: `mkdir -p no/such` makes it\n"
            )
        );
    }
}

/// Commands with an output where one of their inputs is.
const OVER_INPUTS: [(&str, &str); 16] = [
    ("model.pt RUN -o inputs.json", "inputs.json"),
    ("model.pt WEIGHTS -o slack.pt", "slack.pt"),
    ("model.pt RUN --save-trace inputs.json", "inputs.json"),
    ("model.pt WEIGHTS --save-snapshot slack.pt", "slack.pt"),
    ("validate model.pt RUN -o inputs.json", "inputs.json"),
    (
        "validate model.pt RUN --snapshot t.jsonl -o t.jsonl",
        "t.jsonl",
    ),
    ("replay t.jsonl -o t.jsonl", "t.jsonl"),
    (
        "fit model.pt --input Bx8x4x4 --memory 1GiB --weights slack.pt -o slack.pt",
        "slack.pt",
    ),
    ("diff mlp.pt slack.pt -o slack.pt", "slack.pt"),
    ("check model.pt --baseline b.json -o b.json", "b.json"),
    (
        "check --budget budgets.json -o budgets.json",
        "budgets.json",
    ),
    // Named by the baseline or by the budget only.
    (
        "check model.pt --baseline b.json -o inputs.json",
        "inputs.json",
    ),
    ("check --budget budgets.json -o model.pt", "model.pt"),
    ("check --budget budgets.json -o inputs.json", "inputs.json"),
    ("check --budget weights.json -o slack.pt", "slack.pt"),
    (
        "check model.pt --baseline inputs.json --update-baseline --inputs inputs.json",
        "inputs.json",
    ),
];

/// Every kind of change is told in a narrow terminal, too.
#[test]
fn a_narrow_terminal_shows_what_changed() {
    let folder = Folder::new();
    let old = folder.path("old.json");
    let said = run(&["fixtures/state_tied.pt", "--format", "json", "-o", &old]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    folder.changed("old.json", "new.json", |report| {
        let storages = report["storages"].as_array_mut().unwrap();
        let mut own = storages[0].clone();
        let id = storages.len();
        own["id"] = id.into();
        storages.push(own);
        for tensor in report["tensors"].as_array_mut().unwrap() {
            match tensor["name"].as_str().unwrap() {
                "lm_head.weight" => tensor["storage"] = id.into(),
                "blocks.0.norm1.weight" => tensor["shape"] = serde_json::json!([4, 4]),
                "blocks.0.norm1.bias" => tensor["role"] = "buffer".into(),
                "blocks.0.norm2.weight" => tensor["requires_grad"] = true.into(),
                "blocks.0.out.weight" => tensor["strides"] = serde_json::json!([1, 16]),
                "blocks.0.norm2.bias" => tensor["dtype"] = "float16".into(),
                _ => {}
            }
        }
    });
    let narrow = |args: &[&str]| {
        let mut command = crate::common::inspect(args);
        command.current_dir(folder.0.path()).env("COLUMNS", "60");
        Said::of(&command.output().unwrap())
    };
    check!(
        "diff_kinds_narrow",
        narrow(&["diff", "old.json", "new.json"])
    );
    check!(
        "diff_kinds_back",
        in_folder(&folder, &["diff", "new.json", "old.json"])
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for name in ["state_mlp.pt", "state_prefixed.pt"] {
        std::fs::copy(root.join(name), folder.0.path().join(name)).unwrap();
    }
    let renamed = ["diff", "state_mlp.pt", "state_prefixed.pt"];
    check!("diff_renamed_narrow", narrow(&renamed));
}

/// What is read is never replaced, whichever option names it.
#[test]
fn no_output_replaces_an_input() {
    let folder = budget_folder();
    let engine = engine("residual.jsonl");
    for (from, to) in [
        (FILE, "model.pt"),
        ("tests/traces/residual.jsonl", "t.jsonl"),
    ] {
        std::fs::copy(from, folder.0.path().join(to)).unwrap();
    }
    folder.write("inputs.json", r#"["1x8x4x4"]"#);
    let budget = |options: &str| {
        format!(
            r#"[{{"files": "model.pt", "options": {{{options}}}, "max": {{"file_bytes": "1MB"}}}}]"#
        )
    };
    folder.write("budgets.json", &budget(r#""inputs": "inputs.json""#));
    folder.write(
        "weights.json",
        &budget(r#""input": ["1x8x4x4"], "weights": "slack.pt""#),
    );
    let say = |line: &str| {
        let line = line
            .replace("RUN", "--inputs inputs.json --basis cpu-trace")
            .replace("WEIGHTS", "--input 1x8x4x4 --weights slack.pt");
        let args: Vec<&str> = line.split(' ').collect();
        let mut command = crate::common::inspect(&args);
        command
            .current_dir(folder.0.path())
            .env("INSPECT_ENGINE", engine.path());
        Said::of(&command.output().unwrap())
    };
    let said = say("check model.pt RUN --baseline b.json --update-baseline");
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    for (line, kept) in OVER_INPUTS {
        let before = std::fs::read(folder.0.path().join(kept)).unwrap();
        let said = say(line);
        assert_eq!(said.code, Some(2), "{line}: {}", said.snapshot());
        assert!(
            said.stderr.contains("not overwritten"),
            "{line}: {}",
            said.stderr
        );
        let after = std::fs::read(folder.0.path().join(kept)).unwrap();
        assert_eq!(after, before, "{line}");
    }
    for line in [
        "check model.pt --baseline b.json --update-baseline -o b.json",
        "model.pt --input 1x8x4x4 --save-trace x -o ./x",
    ] {
        let said = say(line);
        assert_eq!(said.code, Some(2), "{line}: {}", said.snapshot());
        assert!(
            said.stderr.contains("written twice"),
            "{line}: {}",
            said.stderr
        );
    }
}

/// The shards of a checkpoint are read too, though only the index is named.
#[test]
fn no_output_replaces_a_shard() {
    let folder = Folder::new();
    let from = Path::new("fixtures/sharded/safetensors");
    let mut shard = None;
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        std::fs::copy(&path, folder.0.path().join(&name)).unwrap();
        if name.ends_with(".safetensors") {
            shard = Some(name);
        }
    }
    let shard = shard.unwrap();
    let before = std::fs::read(folder.0.path().join(&shard)).unwrap();
    let index = "model.safetensors.index.json";
    for args in [
        &[index, "-o", &shard][..],
        &["check", index, "--max", "tensors=1k", "-o", &shard],
        &["diff", index, index, "-o", &shard],
    ] {
        let said = in_folder(&folder, args);
        assert_eq!(said.code, Some(2), "{args:?}: {}", said.snapshot());
        assert!(
            said.stderr.contains("not overwritten"),
            "{args:?}: {}",
            said.stderr
        );
        let after = std::fs::read(folder.0.path().join(&shard)).unwrap();
        assert_eq!(after, before, "{args:?}");
    }
}
