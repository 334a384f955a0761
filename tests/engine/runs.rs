//! Runs through the real engine: hostile code, odd inputs, weights of every kind, and what every run's report keeps to.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::archive::{Record, legacy, plain, script, tensor, zip};
use crate::common::{Said, inspect};
use inspect_checkpoint::trace::{Trace, TraceReader};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Writes a TorchScript file whose class has this code.
fn model(folder: &TempDir, attributes: &[u8], body: &str) -> PathBuf {
    let path = folder.path().join("m.pt");
    std::fs::write(&path, zip(&script(attributes, body))).unwrap();
    path
}

/// The file in a command, with these arguments.
fn run(path: &Path, args: &[&str]) -> Said {
    let mut command = inspect(args);
    Said::of(&command.arg(path).arg("--no-sim").output().unwrap())
}

/// The report of a run that worked.
fn report(path: &Path, args: &[&str]) -> Value {
    let said = run(path, &[args, &["--format", "json"]].concat());
    assert_eq!(said.code, Some(0), "{}: {}", path.display(), said.stderr);
    serde_json::from_str(&said.stdout).unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// `forward(x)` with these statements.
fn forward(statements: &str) -> String {
    let lines = statements.replace('\n', "\n    ");
    format!(
        "  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n    {lines}\n    return x\n"
    )
}

/// How many errors were told.
fn errors(said: &Said) -> usize {
    let lines = said.stderr.lines();
    lines.filter(|line| line.starts_with("error: ")).count()
}

#[test]
fn hostile_code_ends_in_one_error() {
    let cases: [(&str, &str, &[&str], &str); 8] = [
        (
            "loops for ever",
            "n = 0\n_0 = True\nwhile _0:\n  n0 = torch.remainder(torch.add(n, 1), 7)\n  _0, n = torch.ge(n0, 0), n0",
            &["--timeout", "3s"],
            "did not finish within 3 s, while forward",
        ),
        (
            "loops for ever, with operators",
            "_0 = True\nwhile _0:\n  y = torch.relu(x)\n  _0 = bool(torch.all(torch.ge(y, 0)))",
            &["--timeout", "3s"],
            "did not finish within 3 s, while forward",
        ),
        (
            "4 TiB at once",
            "x = torch.zeros([1099511627776])",
            &[],
            "can't allocate memory",
        ),
        (
            "memory bit by bit",
            "l = annotate(List[Tensor], [])\n_0 = True\nwhile _0:\n  _1 = torch.append(l, torch.ones([1048576]))\n  _0 = torch.gt(torch.len(l), 0)",
            &["--memory-limit", "1GiB"],
            "memory",
        ),
        (
            "an error of megabytes, with an escape sequence",
            "a = \"\\u001b[31mé\"\nfor i in range(22):\n  a = torch.add(a, a)\nops.prim.RaiseException(a, \"builtins.ValueError\")",
            &[],
            "[31mé",
        ),
        (
            "a file is mapped and written",
            "x = torch.from_file(\"/tmp/inspect-test-must-not-be\", True, 10)",
            &["--trust"],
            "/tmp/inspect-test-must-not-be",
        ),
        (
            "a file is saved",
            "torch.save(x, \"/tmp/inspect-test-must-not-be\")",
            &["--trust"],
            "/tmp/inspect-test-must-not-be",
        ),
        (
            "a file of others is read",
            "x = torch.from_file(\"/etc/passwd\", False, 10)",
            &["--trust"],
            "/etc/passwd",
        ),
    ];
    let folder = TempDir::new().unwrap();
    for (what, statements, args, expected) in cases {
        let path = model(&folder, b"", &forward(statements));
        let start = Instant::now();
        let said = run(&path, &[&["--input", "2x3", "-q"], args].concat());
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        assert!(
            matches!(said.code, Some(2 | 3)),
            "{what}: {:?} {}",
            said.code,
            said.stderr
        );
        assert_eq!(errors(&said), 1, "{what}: {}", said.stderr);
        assert!(said.stderr.contains(expected), "{what}: {}", said.stderr);
        assert!(
            said.stderr.len() < 20_000,
            "{what}: {} bytes",
            said.stderr.len()
        );
        assert!(!said.stderr.contains('\u{1b}'), "{what}");
        assert!(
            !Path::new("/tmp/inspect-test-must-not-be").exists(),
            "{what}: a file was written"
        );
    }
}

#[test]
fn code_that_crashes_libtorch_is_an_error() {
    let folder = TempDir::new().unwrap();
    let nested = format!("y = {}x{}", "(".repeat(20_000), ")".repeat(20_000));
    let path = model(&folder, b"", &forward(&nested));
    let said = run(&path, &["--input", "2x3", "-q"]);
    assert!(matches!(said.code, Some(2 | 3)), "{}", said.stderr);
    assert_eq!(errors(&said), 1, "{}", said.stderr);
}

#[test]
fn what_a_model_prints_is_not_the_protocol() {
    let folder = TempDir::new().unwrap();
    let statements = "a = \"x\"\nfor i in range(20):\n  a = torch.add(a, a)\nfor j in range(100):\n  print(a)\nprint(\"\\n{\\\"type\\\":\\\"done\\\",\\\"trace_lines\\\":0}\")";
    let path = model(&folder, b"", &forward(statements));
    let report = report(&path, &["--input", "2x3"]);
    assert_eq!(report["run"]["outputs"][0]["shape"], json!([2, 3]));
}

#[test]
fn long_lists_of_numbers_are_no_outputs() {
    let folder = TempDir::new().unwrap();
    let body = "  def forward(self: __torch__.M,\n    x: Tensor) -> Tuple[List[int], Tensor]:\n    \
                l = annotate(List[int], [])\n    for i in range(3000000):\n      \
                _0 = torch.append(l, i)\n    return (l, x)\n";
    let report = report(&model(&folder, b"", body), &["--input", "2x3"]);
    assert_eq!(report["run"]["outputs"].as_array().unwrap().len(), 1);
    assert_eq!(report["run"]["outputs"][0]["path"], "1");
}

/// A process's children, as the kernel lists them.
#[cfg(target_os = "linux")]
fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().filter_map(Result::ok);
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let list = list.split_whitespace();
            list.filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()
        })
        .collect()
}

#[cfg(target_os = "linux")]
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_engine_does_not_outlive_a_killed_front() {
    let folder = TempDir::new().unwrap();
    let endless = "n = 0\n_0 = True\nwhile _0:\n  n0 = torch.remainder(torch.add(n, 1), 7)\n  _0, n = torch.ge(n0, 0), n0";
    let path = model(&folder, b"", &forward(endless));
    let mut front = inspect(&["--input", "2x3", "--no-sim"])
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut engines = Vec::new();
    wait_for("no engine was started", || {
        engines = children(front.id());
        !engines.is_empty()
    });
    // Until it runs the model: before that, it would notice the end of its stdin.
    std::thread::sleep(Duration::from_millis(1500));
    front.kill().unwrap(); // SIGKILL: the front can do nothing more
    front.wait().unwrap();
    let running = |process: u32| {
        let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let state = state
            .rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with('Z'));
        state == Some(false)
    };
    wait_for("the engine goes on alone", || {
        !engines.iter().any(|engine| running(*engine))
    });
}

/// `forward` with an argument of many types, each used.
const MANY_ARGUMENTS: &str = "  def forward(self: __torch__.M,\n    x: Tensor,\n    n: int=3,\n    flag: bool=False,\n    \
    scale: float=0.5,\n    name: str=\"abc\",\n    opt: Optional[Tensor]=None,\n    sizes: Optional[List[int]]=None,\n    \
    parts: Optional[List[Tensor]]=None) -> Tensor:\n    return torch.mul(torch.add(x, n), scale)\n";

fn arguments(report: &Value) -> Vec<(String, String, bool)> {
    let arguments = report["run"]["arguments"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    arguments
        .map(|one| {
            (
                text(&one["name"]),
                text(&one["value"]),
                one["given"].as_bool().unwrap(),
            )
        })
        .collect()
}

#[test]
fn every_argument_is_in_the_report() {
    let folder = TempDir::new().unwrap();
    let path = model(&folder, b"", MANY_ARGUMENTS);
    let seen = arguments(&report(
        &path,
        &[
            "--input",
            "2x3",
            "--input",
            "flag=true",
            "--input",
            "name=a b",
        ],
    ));
    let expected = [
        ("x", "2x3:float32", true),
        ("n", "3", false),
        ("flag", "true", true),
        ("scale", "0.5", false),
        ("name", "a b", true),
        ("opt", "none", false),
        ("sizes", "none", false),
        ("parts", "none", false),
    ];
    let expected = expected
        .map(|(name, value, given)| (name.to_owned(), value.replace("Float", "float32"), given));
    assert_eq!(seen, expected);
    let said = run(&path, &["--input", "2x3", "--input", "flag=true"]);
    assert!(said.stdout.contains("flag = true"), "{}", said.stdout);
    assert!(said.stdout.contains("n = 3 (default)"), "{}", said.stdout);
}

#[test]
fn an_empty_tensor_is_an_input() {
    let folder = TempDir::new().unwrap();
    let report = report(&model(&folder, b"", MANY_ARGUMENTS), &["--input", "0x3"]);
    assert_eq!(
        report["run"]["inputs"],
        json!([{"name": "x", "dtype": "float32", "shape": [0, 3], "bytes": 0}])
    );
}

#[test]
fn numbers_that_a_dtype_does_not_have_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = model(&folder, b"", MANY_ARGUMENTS);
    let cases = [
        ("2:int8@0..129", "128 is no value of int8"),
        ("2:uint8@-1..3", "-1 is no value of uint8"),
        ("2:bool@2", "2 is no value of bool"),
        ("2:int16@40000", "40000 is no value of int16"),
    ];
    for (spec, expected) in cases {
        let said = run(&path, &["--input", spec, "-q"]);
        assert_eq!(said.code, Some(3), "{spec}");
        assert!(said.stderr.contains(expected), "{spec}: {}", said.stderr);
    }
    for spec in ["2:int8@-128..128", "2:uint8@0..256", "2:bool@0..2"] {
        let said = run(&path, &["--input", spec, "-q"]);
        assert_eq!(said.code, Some(0), "{spec}: {}", said.stderr);
    }
}

#[test]
fn inputs_of_a_file_are_whatever_they_are() {
    let folder = TempDir::new().unwrap();
    let path = model(&folder, b"", MANY_ARGUMENTS);
    // {"x": tensor, "n": 7, "flag": True, "scale": 2.0, "name": "q", "opt": None, "sizes": [1, 2], "parts": (tensor,)}
    let four = tensor(b"K\x00", b"K\x04\x85", b"K\x01\x85");
    let mut pickle = b"\x80\x02}(U\x01x".to_vec();
    pickle.extend(&four);
    pickle.extend(b"U\x01nK\x07U\x04flag\x88U\x05scaleG\x40\0\0\0\0\0\0\0U\x04nameU\x01qU\x03optNU\x05sizes](K\x01K\x02eU\x05parts");
    pickle.extend(&four);
    pickle.extend(b"\x85u.");
    let inputs = folder.path().join("inputs.pt");
    let records = [
        Record::new("a/data.pkl", &pickle),
        Record::deflated("a/data/0", &[0; 16]),
        Record::new("a/version", b"3\n"),
    ];
    std::fs::write(&inputs, zip(&records)).unwrap();
    let seen = arguments(&report(&path, &["--inputs", inputs.to_str().unwrap()]));
    let values: Vec<&str> = seen.iter().map(|(_, value, _)| value.as_str()).collect();
    assert_eq!(
        values,
        [
            "4:float32",
            "7",
            "true",
            "2",
            "q",
            "none",
            "[1, 2]",
            "[4:float32]"
        ]
    );
    assert!(seen.iter().all(|(_, _, given)| *given));
}

/// How a number is written.
type Encode = fn(f32) -> [u8; 4];

/// A state_dict with the weights 1, 2, 3, 4 under a key, their bytes made by `bytes`.
fn weights(folder: &TempDir, key: &str, order: &str, deflate: bool, bytes: Encode) -> PathBuf {
    let data: Vec<u8> = [1.0, 2.0, 3.0, 4.0].into_iter().flat_map(bytes).collect();
    let mut pickle = b"\x80\x02}U".to_vec();
    pickle.push(u8::try_from(key.len()).unwrap());
    pickle.extend(key.as_bytes());
    pickle.extend(tensor(b"K\x00", b"K\x04\x85", b"K\x01\x85"));
    pickle.extend(b"s.");
    let data = if deflate {
        Record::deflated("a/data/0", &data)
    } else {
        Record::new("a/data/0", &data)
    };
    let records = [
        Record::new("a/data.pkl", &pickle),
        Record::new("a/byteorder", order.as_bytes()),
        data,
        Record::new("a/version", b"3\n"),
    ];
    let path = folder.path().join("weights.pth");
    std::fs::write(&path, zip(&records)).unwrap();
    path
}

/// A module with a parameter `w` of four zeros, which fails unless it holds 1, 2, 3, 4.
fn checks_its_weights(folder: &TempDir) -> PathBuf {
    // As the other recipe, in the opcodes that libtorch's own unpickler knows.
    let attributes = b"X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n\
        X\x01\0\0\x000X\x03\0\0\0cpuK\x04tQK\0K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR";
    let body = "  __parameters__ = [\"w\"]\n  __buffers__ = []\n  w : Tensor\n".to_owned()
        + &forward(
            "e = torch.add(torch.arange(4), 1)\n_0 = bool(torch.any(torch.ne(self.w, e)))\nif _0:\n  ops.prim.RaiseException(\"wrong weights\", \"builtins.ValueError\")\nelse:\n  pass",
        );
    let mut records = script(attributes, &body);
    records.insert(1, Record::new("m/data/0", &[0; 16]));
    let path = folder.path().join("m.pt");
    std::fs::write(&path, zip(&records)).unwrap();
    path
}

#[test]
fn weights_of_every_storage_are_loaded() {
    let folder = TempDir::new().unwrap();
    let path = checks_its_weights(&folder);
    let said = run(&path, &["--input", "2x3", "-q"]);
    assert_eq!(said.code, Some(3));
    assert!(said.stderr.contains("wrong weights"), "{}", said.stderr);
    let cases: [(&str, &str, bool, Encode); 6] = [
        ("w", "little", false, f32::to_le_bytes),
        ("w", "little", true, f32::to_le_bytes),
        ("w", "big", false, f32::to_be_bytes),
        ("w", "big", true, f32::to_be_bytes),
        ("module.w", "little", false, f32::to_le_bytes),
        ("_orig_mod.module.w", "little", false, f32::to_le_bytes),
    ];
    for (key, order, deflate, bytes) in cases {
        let weights = weights(&folder, key, order, deflate, bytes);
        let said = run(
            &path,
            &[
                "--input",
                "2x3",
                "-q",
                "--weights",
                weights.to_str().unwrap(),
            ],
        );
        assert_eq!(
            said.code,
            Some(0),
            "{key} {order} {deflate}: {}",
            said.stderr
        );
    }
}

#[test]
fn weights_of_every_format_are_loaded() {
    let folder = TempDir::new().unwrap();
    let path = checks_its_weights(&folder);
    let data: Vec<u8> = [1_f32, 2.0, 3.0, 4.0]
        .into_iter()
        .flat_map(f32::to_le_bytes)
        .collect();
    let one = [&b"}U\x01w"[..], &plain(), b"s"].concat();
    let bare = [&b"\x80\x02"[..], &one, b"."].concat();
    // {"epoch": 3, "state_dict": {"w": ...}}
    let nested = [
        &b"\x80\x02}(U\x05epochK\x03U\x0astate_dict"[..],
        &one,
        b"u.",
    ]
    .concat();
    let header = r#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let safetensors = [
        &u64::try_from(header.len()).unwrap().to_le_bytes()[..],
        header.as_bytes(),
        &data,
    ]
    .concat();
    let zipped = |pickle: &[u8]| {
        zip(&[
            Record::new("a/data.pkl", pickle),
            Record::new("a/data/0", &data),
            Record::new("a/version", b"3\n"),
        ])
    };
    let cases = [
        ("zip.pth", zipped(&bare)),
        ("nested.pth", zipped(&nested)),
        ("legacy.pth", legacy(&bare, &data)),
        ("nested_legacy.pth", legacy(&nested, &data)),
        ("model.safetensors", safetensors),
    ];
    for (name, bytes) in cases {
        let weights = folder.path().join(name);
        std::fs::write(&weights, bytes).unwrap();
        let weights = weights.to_str().unwrap();
        let said = run(&path, &["--input", "2x3", "-q", "--weights", weights]);
        assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
    }
}

#[test]
fn a_networks_deflated_weights_are_loaded() {
    let weights = fixture("resnet18_state.pth");
    let report = report(
        &fixture("resnet18.pt"),
        &[
            "--input",
            "1x3x32x32",
            "--weights",
            weights.to_str().unwrap(),
        ],
    );
    assert_eq!(report["run"]["outputs"][0]["shape"], json!([1, 1000]));
}

#[test]
fn weights_that_do_not_fit_are_listed() {
    let folder = TempDir::new().unwrap();
    let path = checks_its_weights(&folder);
    let other = weights(&folder, "v", "little", false, f32::to_le_bytes);
    let said = run(
        &path,
        &["--input", "2x3", "-q", "--weights", other.to_str().unwrap()],
    );
    assert_eq!(said.code, Some(3));
    for part in [
        "keys 1 missing, 1 unexpected",
        "missing: w",
        "unexpected: v",
    ] {
        assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
    }
    let sparse = fixture("sparse.pt");
    let said = run(
        &path,
        &[
            "--input",
            "2x3",
            "-q",
            "--weights",
            sparse.to_str().unwrap(),
        ],
    );
    assert_eq!(said.code, Some(3));
    assert!(said.stderr.contains("missing: w"), "{}", said.stderr);
}

/// The report without its times.
fn without_times(mut value: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|key, _| !key.ends_with("_ns"));
                map.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut value);
    value
}

const MODELS: [(&str, &[&str]); 7] = [
    ("residual.pt", &["--input", "1x3x16x16"]),
    ("shared_module.pt", &["--input", "2x6"]),
    ("lstm_tagger.pt", &["--input", "1x12:int64"]),
    ("control_flow.pt", &["--input", "2x4"]),
    ("many_calls.pt", &["--input", "2x8"]),
    ("tiny_cnn_frozen.pt", &["--input", "1x3x16x16"]),
    ("transformer_encoder.pt", &["--input", "2x6x16"]),
];

/// What a fixture's truth says it is run with.
fn inputs_of(name: &str) -> Option<Vec<String>> {
    let truth = std::fs::read_to_string(fixture(&format!("{name}.truth.json"))).unwrap();
    let truth: Value = serde_json::from_str(&truth).unwrap();
    let specs = truth["run"]["input"].as_array()?.iter();
    Some(
        specs
            .flat_map(|spec| ["--input".to_owned(), spec.as_str().unwrap().to_owned()])
            .collect(),
    )
}

fn with_inputs(name: &str, default: &[&str]) -> Vec<String> {
    inputs_of(name).unwrap_or_else(|| default.iter().map(|&arg| arg.to_owned()).collect())
}

#[test]
fn two_runs_show_the_same() {
    for (name, default) in MODELS {
        let inputs = with_inputs(name, default);
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let twice = [(); 2].map(|()| {
            let args = [&inputs[..], &["--ops"]].concat();
            without_times(report(&fixture(name), &args))
        });
        assert_eq!(twice[0], twice[1], "{name}");
    }
    let train = [(); 2].map(|()| {
        let args = [
            "--input",
            "2x16",
            "--train",
            "--optimizer",
            "adamw",
            "--ops",
        ];
        without_times(report(&fixture("train/mlp.pt"), &args))
    });
    assert_eq!(train[0], train[1]);
}

/// The engine's own trace of a model.
fn trace(file: &Path, dims: &[u64], training: Option<&str>) -> Trace {
    let spec = json!({"text": "x", "tensor": {"dims": dims, "dtype": null, "fill": "ones"}, "scalar": null});
    let mode = training.map_or(json!("inference"), |optimizer| {
        json!({"training": {"optimizer": optimizer, "implementation": null, "loss": "mean", "steps": 2}})
    });
    let request = json!({
        "protocol": 1, "threads": 1,
        "task": {
            "do": "run", "file": file, "weights": null, "method": "forward",
            "inputs": {"arguments": [{"name": null, "value": {"spec": spec}}]}, "mode": mode,
            "device": "cpu", "cast": null, "autocast": null, "seed": 0, "alloc_conf": null,
        },
    });
    let lines = crate::common::engine_lines(env!("CARGO_BIN_EXE_inspect-torch"), &request);
    let mut reader = TraceReader::new();
    for line in lines.iter().filter(|line| !line.starts_with("{\"type\":")) {
        reader.line(line).unwrap();
    }
    reader.finish().unwrap()
}

#[test]
fn categories_add_up_at_every_event() {
    let cases: [(&str, &[u64]); 3] = [
        ("train/mlp.pt", &[2, 16]),
        ("train/cnn.pt", &[1, 3, 32, 32]),
        ("train/transformer.pt", &[2, 6, 16]),
    ];
    for (name, dims) in cases {
        crate::common::assert_categories_add_up(name, &trace(&fixture(name), dims, None));
        for optimizer in ["sgd", "adamw", "adagrad"] {
            crate::common::assert_categories_add_up(
                &format!("{name}, {optimizer}"),
                &trace(&fixture(name), dims, Some(optimizer)),
            );
        }
    }
}
