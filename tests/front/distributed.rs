//! Folders that several processes saved: `torch.distributed.checkpoint`, real ones and hostile ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Said, report, run};
use serde_json::{Value, json};

const DCP: &str = "fixtures/distributed/dcp";
const PARTS: [&str; 2] = ["__0_0.distcp", "__1_0.distcp"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in PARTS.iter().chain(&[".metadata"]) {
        fs::copy(root().join(DCP).join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn codes(report: &Value) -> Vec<(&str, &str)> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .map(|f| (f["code"].as_str().unwrap(), f["location"].as_str().unwrap()))
        .collect()
}

fn dcp_truth() -> Value {
    let truth = fs::read(root().join(DCP).join(".metadata.truth.json")).unwrap();
    serde_json::from_slice(&truth).unwrap()
}

fn row<'r>(report: &'r Value, name: &str) -> &'r Value {
    let mut rows = report["tensors"].as_array().unwrap().iter();
    rows.find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn a_distributed_checkpoint_is_its_tensors_whole() {
    let truth = dcp_truth();
    let (report, said) = report(&[DCP, "--stats", "--verify"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    assert_eq!(report["file"]["format"], "dcp");
    assert_eq!(report["file"]["object"], "checkpoint");
    assert_eq!(report["security"]["verdict"], "clean");
    assert_eq!(report["findings"], json!([]));
    assert_eq!(report["verified"]["damaged"], 0);
    assert_eq!(
        report["verified"]["records"],
        report["storages"].as_array().unwrap().len()
    );
    let tensors = truth["tensors"].as_array().unwrap();
    assert_eq!(report["tensors"].as_array().unwrap().len(), tensors.len());
    for tensor in tensors {
        let name = tensor["name"].as_str().unwrap();
        let own = row(&report, name);
        for key in ["role", "dtype", "shape", "strides", "numel", "bytes"] {
            assert_eq!(own[key], tensor[key], "{name} {key}");
        }
        for (key, value) in truth["values"][name].as_object().unwrap() {
            assert_eq!(own["stats"][key].as_f64(), value.as_f64(), "{name} {key}");
        }
        let mut chunks: Vec<Value> = Vec::new();
        for chunk in own["chunks"].as_array().unwrap() {
            chunks.push(json!([chunk["offsets"], chunk["sizes"]]));
            let key = format!("{name}{}", chunk["offsets"]).replace(',', ", ");
            let place = json!([chunk["file"], chunk["file_offset"], chunk["file_bytes"]]);
            assert_eq!(place, truth["places"][&key], "{key}");
        }
        assert_eq!(json!(chunks), truth["chunks"][name], "{name}");
    }
    let files = report["file"]["files"].as_array().unwrap();
    for (file, rank) in files.iter().zip([Value::Null, json!(0), json!(1)]) {
        assert_eq!(
            file["bytes"],
            truth["files"][file["name"].as_str().unwrap()]
        );
        assert_eq!(file["ranks"]["rank"], rank, "{file}");
    }
    let objects: Vec<&Value> = report["objects"].as_array().unwrap().iter().collect();
    let values: BTreeMap<&str, &str> = objects
        .iter()
        .map(|o| (o["name"].as_str().unwrap(), o["value"].as_str().unwrap()))
        .collect();
    let expected = [
        ("config.lr", "0.125"),
        ("config.name", "'adamw'"),
        ("epoch", "3"),
    ];
    assert_eq!(values, BTreeMap::from(expected));
    let (mut by_file, _) = self::report(&[&format!("{DCP}/.metadata"), "--stats", "--verify"]);
    by_file["file"]["path"] = json!(DCP);
    assert_eq!(by_file, report);
}

/// Every number is where `dcp_to_torch_save` puts it: pieces of rows, of columns, uneven ones and of the middle.
#[test]
fn its_numbers_are_those_of_the_same_model_in_one_file() {
    let said = run(&["diff", "fixtures/distributed/whole.pt", DCP, "--values"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert!(said.stdout.contains("9 tensors"), "{}", said.stdout);
    assert!(!said.stdout.contains("differ in"), "{}", said.stdout);
    let (whole, _) = report(&["fixtures/distributed/whole.pt", "--stats"]);
    let (dcp, _) = report(&[DCP, "--stats"]);
    for tensor in whole["tensors"].as_array().unwrap() {
        let own = row(&dcp, tensor["name"].as_str().unwrap());
        assert_eq!(own["stats"], tensor["stats"], "{}", tensor["name"]);
    }
}

#[test]
fn the_table_says_whose_files_and_what_objects() {
    for format in ["table", "markdown", "html"] {
        let said = run(&[DCP, "--format", format]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        for expected in ["chunked", "rank 1", "__1_0.distcp", "adamw", "epoch"] {
            // A table breaks long lines.
            let words: Vec<&str> = said.stdout.split_whitespace().collect();
            let text = words.join(" ").replace('\\', "");
            assert!(text.contains(expected), "{format} {expected}: {text}");
        }
    }
    // In a folder of several it is one of them only by its own name; the folder itself is one.
    let said = run(&[DCP, "--filter", "uneven"]);
    assert!(said.stdout.contains("5×3 chunked"), "{}", said.stdout);
}

#[test]
fn a_missing_file_leaves_the_rest() {
    let folder = copy();
    fs::remove_file(folder.path().join(PARTS[1])).unwrap();
    let (report, said) = report(&[text(folder.path()), "--stats"]);
    assert_eq!(said.code, Some(2));
    assert!(
        said.stderr
            .contains("is incomplete: `__1_0.distcp` is missing"),
        "{}",
        said.stderr
    );
    assert!(
        said.stderr.contains("hint: fetch the missing files"),
        "{}",
        said.stderr
    );
    assert_eq!(codes(&report)[0], ("missing-shard", PARTS[1]));
    let rows = row(&report, "model.rows.weight");
    assert_eq!(rows["shape"], json!([8, 6]));
    assert_eq!(rows["stats"], Value::Null);
    assert_eq!(rows["chunks"][1]["storage"], Value::Null);
    assert_eq!(rows["chunks"][1]["file"], PARTS[1]);
}

#[test]
fn what_is_not_whole_is_neither_compared_nor_checked_in_silence() {
    let dcp = copy();
    fs::remove_file(dcp.path().join(PARTS[1])).unwrap();
    let zero = deepspeed();
    let lacking = fs::read_dir(zero.path().join("global_step10")).unwrap();
    let mut names: Vec<PathBuf> = lacking.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let optimizer = names.iter().rfind(|path| text(path).contains("optim"));
    fs::remove_file(optimizer.unwrap()).unwrap();
    for folder in [&dcp, &zero] {
        let path = text(folder.path());
        let listed = run(&[path]);
        assert_eq!(listed.code, Some(2), "{}", listed.snapshot());
        for both in [["diff", path, DCP], ["diff", DCP, path]] {
            let said = run(&both);
            assert_eq!(said.code, Some(2), "{}", said.snapshot());
            assert_eq!(said.stderr, listed.stderr);
            assert!(!said.stdout.is_empty());
        }
        let saved = folder.path().join("saved.json");
        run(&[path, "--format", "json", "-o", text(&saved)]);
        let said = run(&["diff", text(&saved), DCP]);
        assert_eq!(said.code, Some(2), "{}", said.snapshot());
        assert!(said.stderr.contains("is missing"), "{}", said.stderr);
        let (checked, said) = report(&["check", path, "--max", "file_bytes=1GiB"]);
        assert_eq!(said.code, Some(2), "{}", said.snapshot());
        assert_eq!(said.stderr, listed.stderr);
        assert_eq!(checked["verdict"], "fail");
        let baseline = folder.path().join("baseline.json");
        let base = ["--baseline", text(&baseline), "--update-baseline"];
        let said = run(&[&["check", path][..], &base].concat());
        assert_eq!(said.code, Some(2), "{}", said.snapshot());
        assert!(!baseline.exists(), "{}", said.snapshot());
    }
}

#[test]
fn files_of_another_save_and_without_metadata_are_named() {
    let folder = copy();
    fs::copy(
        folder.path().join(PARTS[0]),
        folder.path().join("__7_0.distcp"),
    )
    .unwrap();
    let (report, said) = report(&[text(folder.path())]);
    assert_eq!(said.code, Some(0));
    assert_eq!(codes(&report), [("extra-shard", "__7_0.distcp")]);
    fs::remove_file(folder.path().join(".metadata")).unwrap();
    for (name, expected) in [
        ("note", "the name that starts with a dot"),
        (".metadata.tmp", "saving it was interrupted"),
        ("__0.metadata", "without collectives"),
    ] {
        fs::write(folder.path().join(name), b"").unwrap();
        let said = run(&[text(folder.path())]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{name}");
        assert!(said.stderr.contains(expected), "{name}: {}", said.stderr);
    }
}

#[test]
fn a_part_alone_is_said_to_be_one() {
    let said = run(&[&format!("{DCP}/{}", PARTS[0])]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    assert!(
        said.stderr.contains("hint: name its folder"),
        "{}",
        said.stderr
    );
}

#[test]
fn damage_is_found_where_it_is() {
    let folder = copy();
    let path = folder.path().join(PARTS[1]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let said = run(&[text(folder.path())]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    for expected in [
        "`__1_0.distcp`",
        "truncated",
        "optimizer.state.rows.weight.exp_avg",
        "hint: ",
    ] {
        assert!(
            said.stderr.contains(expected),
            "{expected}: {}",
            said.stderr
        );
    }
    // A number of a tensor: only its checksum tells.
    let (report, _) = report(&[DCP]);
    let storage = &report["storages"][report["storages"].as_array().unwrap().len() - 1];
    let (_, range) = storage["member"]
        .as_str()
        .unwrap()
        .split_once("::")
        .unwrap();
    let offset: usize = range.split_once(':').unwrap().0.parse().unwrap();
    let mut damaged = whole;
    damaged[offset] ^= 1;
    fs::write(&path, damaged).unwrap();
    assert_eq!(run(&[text(folder.path())]).code, Some(0));
    let (report, said) = self::report(&[text(folder.path()), "--verify"]);
    assert_eq!(said.code, Some(2));
    assert_eq!(
        codes(&report),
        [("bad-crc", storage["member"].as_str().unwrap())]
    );
}

/// Pickles as a stranger would write them.
struct Forged {
    items: Vec<u8>,
    stored: Vec<u8>,
}

fn string(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    [b"X", &length[..], text.as_bytes()].concat()
}

fn number(value: i128) -> Vec<u8> {
    [b"\x8a\x10", &value.to_le_bytes()[..]].concat()
}

fn object(class: &str, state: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let module = match class {
        "_StorageInfo" => "filesystem",
        _ => "metadata",
    };
    let mut out = format!("ctorch.distributed.checkpoint.{module}\n{class}\n)\x11").into_bytes();
    *out.last_mut().unwrap() = 0x81;
    out.push(b'}');
    for (key, value) in state {
        out.extend(string(key));
        out.extend(value);
        out.push(b's');
    }
    out.push(b'b');
    out
}

fn size(sizes: &[i128]) -> Vec<u8> {
    let numbers: Vec<u8> = sizes.iter().flat_map(|size| number(*size)).collect();
    [b"ctorch\nSize\n(" as &[u8], &numbers, b"t\x85R"].concat()
}

fn chunk(offsets: &[i128], sizes: &[i128]) -> Vec<u8> {
    object(
        "ChunkStorageMetadata",
        &[("offsets", size(offsets)), ("sizes", size(sizes))],
    )
}

impl Forged {
    fn new() -> Forged {
        Forged {
            items: Vec::new(),
            stored: Vec::new(),
        }
    }

    fn tensor(mut self, name: &str, sizes: &[i128], chunks: &[Vec<u8>]) -> Forged {
        let mut properties =
            b"ctorch.distributed.checkpoint.metadata\nTensorProperties\n)\x81(ctorch\nfloat32\n"
                .to_vec();
        properties.extend(b"N\x89N\x89tb");
        let list = [b"](" as &[u8], &chunks.concat(), b"e"].concat();
        self.items.extend(string(name));
        self.items.extend(object(
            "TensorStorageMetadata",
            &[
                ("properties", properties),
                ("size", size(sizes)),
                ("chunks", list),
            ],
        ));
        self
    }

    fn at(mut self, name: &str, offsets: &[i128], file: &str, place: (i128, i128)) -> Forged {
        let index = [
            ("fqn", string(name)),
            ("offset", size(offsets)),
            ("index", number(0)),
        ];
        self.stored.extend(object("MetadataIndex", &index));
        let info = [
            ("relative_path", string(file)),
            ("offset", number(place.0)),
            ("length", number(place.1)),
        ];
        self.stored.extend(object("_StorageInfo", &info));
        self
    }

    fn pickle(&self) -> Vec<u8> {
        let items = [b"}(" as &[u8], &self.items, b"u"].concat();
        let stored = [b"}(" as &[u8], &self.stored, b"u"].concat();
        let state = [("state_dict_metadata", items), ("storage_data", stored)];
        [b"\x80\x02" as &[u8], &object("Metadata", &state), b"."].concat()
    }

    /// What the program says of it, in a folder with the files of the fixture.
    fn said(&self) -> (Said, tempfile::TempDir) {
        let folder = copy();
        fs::write(folder.path().join(".metadata"), self.pickle()).unwrap();
        (
            run(&[text(folder.path()), "--format", "json", "--stats"]),
            folder,
        )
    }
}

/// Where the fixture keeps the first 4 of 8 rows, as 4×6 float32.
fn rows() -> (i128, i128) {
    let truth = dcp_truth();
    let place = &truth["places"]["model.rows.weight[0, 0]"];
    (
        place[1].as_i64().unwrap().into(),
        place[2].as_i64().unwrap().into(),
    )
}

#[test]
fn a_forged_metadata_reads_like_the_real_one() {
    let forged = Forged::new().tensor("w", &[4, 6], &[chunk(&[0, 0], &[4, 6])]);
    let (said, _folder) = forged.at("w", &[0, 0], PARTS[0], rows()).said();
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(row(&report, "w")["stats"]["max"], json!(23.0 / 8.0));
    assert_eq!(report["totals"]["by_class"]["parameters"], 96);
    let codes = codes(&report);
    assert_eq!(
        codes,
        [("unused-bytes", PARTS[0]), ("extra-shard", PARTS[1])]
    );
}

#[test]
fn metadata_that_cannot_be_true_is_refused() {
    let one = || Forged::new().tensor("w", &[4, 6], &[chunk(&[0, 0], &[4, 6])]);
    let (begin, length) = rows();
    let cases: Vec<(Forged, &[&str])> = vec![
        (
            one().at("w", &[0, 0], "../../etc/passwd", (0, 9)),
            &["leads out of", "hint: keep all files"],
        ),
        (
            one().at("w", &[0, 0], "/etc/passwd", (0, 9)),
            &["leads out of", "`/etc/passwd`"],
        ),
        (one().at("w", &[0, 0], "", (0, 9)), &["leads out of"]),
        (
            one().at("w", &[0, 0], PARTS[0], (begin, 1 << 40)),
            &["truncated", "the entry of `w`", "hint: "],
        ),
        (
            one().at("w", &[0, 0], PARTS[0], (1 << 62, 1 << 62)),
            &["truncated", PARTS[0]],
        ),
        (
            one().at("w", &[0, 0], PARTS[0], (1 << 63, 1)),
            &["`offset`", "natural number"],
        ),
        (
            one().at("w", &[0, 0], PARTS[0], (-1, 1)),
            &["`offset`", "natural number"],
        ),
        (
            one().at("w", &[0, 0], PARTS[0], (begin, -5)),
            &["`length`", "natural number"],
        ),
        (
            one().at("w", &[0, 0], PARTS[0], (begin, length - 1)),
            &["`w`", "zip"],
        ),
        (
            one()
                .at("w", &[0, 0], PARTS[0], rows())
                .at("v", &[0, 0], PARTS[0], (begin + 8, 10)),
            &["overlaps that of `w`"],
        ),
        (
            Forged::new()
                .tensor("w", &[4, 7], &[chunk(&[0, 0], &[4, 7])])
                .at("w", &[0, 0], PARTS[0], rows()),
            &[
                "expected a tensor [4, 7] of float32",
                "found [4, 6] of float32",
            ],
        ),
        (
            Forged::new().tensor("w", &[4, 6], &[chunk(&[0, 1], &[4, 6])]),
            &["a part of the shape [4, 6]"],
        ),
        (
            Forged::new().tensor("w", &[4, 6], &[chunk(&[0], &[4])]),
            &["a part of the shape [4, 6]"],
        ),
        (
            Forged::new().tensor(
                "w",
                &[i128::from(i64::MAX)],
                &[chunk(&[i128::from(i64::MAX)], &[i128::from(i64::MAX)])],
            ),
            &["a part of the shape"],
        ),
        (
            Forged::new().tensor("w", &[1 << 33, 1 << 33], &[]),
            &["`w`", "64 bits"],
        ),
        (
            Forged::new().tensor("w", &[1 << 63], &[]),
            &["`w`", "64 bits"],
        ),
        (
            Forged::new().tensor("w", &[-4], &[]),
            &["`w`", "its size is -4"],
        ),
    ];
    for (forged, expected) in cases {
        let (said, _folder) = forged.said();
        assert_eq!(
            (said.code, said.stdout.as_str()),
            (Some(2), ""),
            "{expected:?}: {}",
            said.stderr
        );
        for part in expected {
            assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
        }
        assert!(
            !said.stderr.contains("root:") && !said.stderr.contains("panic"),
            "{}",
            said.stderr
        );
    }
}

#[test]
fn chunks_that_do_not_make_up_a_tensor_are_findings() {
    let halves = [chunk(&[0, 0], &[4, 6]), chunk(&[3, 0], &[4, 6])];
    let overlapping = Forged::new().tensor("w", &[8, 6], &halves);
    let (said, _folder) = overlapping.at("w", &[0, 0], PARTS[0], rows()).said();
    assert_eq!(said.code, Some(2), "{}", said.snapshot());
    assert!(said.stderr.contains("is not whole: `w`"), "{}", said.stderr);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    let found = codes(&report);
    assert!(found.contains(&("overlapping-chunks", "w")), "{found:?}");
    assert!(found.contains(&("missing-chunk", "w")), "{found:?}");
    assert_eq!(row(&report, "w")["stats"], Value::Null);

    let half = Forged::new().tensor("w", &[8, 6], &[chunk(&[0, 0], &[4, 6])]);
    let (said, _folder) = half.at("w", &[0, 0], PARTS[0], rows()).said();
    assert_eq!(said.code, Some(2));
    assert!(
        said.stderr
            .contains("24 of its 48 elements are in no chunk"),
        "{}",
        said.stderr
    );

    // An entry for nothing that is named, and the same key twice: the last counts, as in Python.
    let twice = Forged::new().tensor("w", &[4, 6], &[chunk(&[0, 0], &[4, 6])]);
    let twice = twice
        .at("w", &[0, 0], "gone", (0, 1))
        .at("w", &[0, 0], PARTS[0], rows());
    let (said, _folder) = twice.said();
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    let found = codes(&report);
    assert!(found.contains(&("duplicate-entry", "w")), "{found:?}");
    assert!(found.contains(&("unknown-entry", "w")), "{found:?}");
    assert_eq!(row(&report, "w")["stats"]["max"], json!(23.0 / 8.0));
}

#[test]
fn what_is_no_metadata_is_said_to_be_none() {
    let folder = copy();
    let path: PathBuf = folder.path().join(".metadata");
    let cyclic = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81q\x00}X\x13\x00\x00\x00state_dict_metadatah\x00sb.";
    let huge = [b"\x80\x04\x8d" as &[u8], &u64::MAX.to_le_bytes(), b"abc."].concat();
    let calls = b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.";
    for (pickle, expected) in [
        (b"\x80\x02}." as &[u8], "`Metadata`, found dict"),
        (b"not a pickle", "is not an opcode"),
        (b"", "truncated"),
        (cyclic, "expected a dictionary"),
        (&huge, "in `.metadata, at byte 0`"),
        (calls, "`Metadata`, found result of `os.system`"),
    ] {
        fs::write(&path, pickle).unwrap();
        let said = run(&[text(folder.path())]);
        assert_eq!(
            (said.code, said.stdout.as_str()),
            (Some(2), ""),
            "{expected}"
        );
        assert!(
            said.stderr.contains(expected),
            "{expected}: {}",
            said.stderr
        );
    }
}

/// One list of chunks that a million tensors share, and one name that a million entries share.
#[test]
fn references_that_multiply_are_bounded() {
    let mut pickle = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}X\x13\x00\x00\x00state_dict_metadata".to_vec();
    let long = "n".repeat(1 << 16);
    let one = Forged::new().tensor(&long, &[4, 6], &vec![chunk(&[0, 0], &[4, 6]); 300]);
    let name_end = string(&long).len();
    let (name, value) = one.items.split_at(name_end);
    pickle.extend(b"}(");
    pickle.extend(name);
    pickle.extend(value);
    pickle.extend(b"q\x01");
    for n in 0..4000_u32 {
        pickle.extend(string(&n.to_string()));
        pickle.extend(b"h\x01");
    }
    pickle.extend(b"uX\x0c\x00\x00\x00storage_data}sb.");
    // `state_dict_metadata` is set by the next `s`: keep the order of a dictionary.
    let at = pickle.windows(2).rposition(|w| w == b"uX").unwrap();
    pickle.insert(at + 1, b's');
    let folder = copy();
    fs::write(folder.path().join(".metadata"), pickle).unwrap();
    let started = std::time::Instant::now();
    let said = run(&[text(folder.path())]);
    assert!(started.elapsed().as_secs() < 20);
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    assert!(said.stderr.contains("exceed the bound"), "{}", said.stderr);
}

const DEEPSPEED: &str = "fixtures/distributed/deepspeed";
const STATES: [&str; 3] = [
    "mp_rank_00_model_states.pt",
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
];

fn deepspeed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("global_step10");
    fs::create_dir(&below).unwrap();
    for name in STATES {
        let from = root().join(DEEPSPEED).join("global_step10").join(name);
        fs::copy(from, below.join(name)).unwrap();
    }
    fs::write(folder.path().join("latest"), "global_step10\n").unwrap();
    folder
}

#[test]
fn what_deepspeed_saved_is_one_checkpoint() {
    let (report, said) = report(&[DEEPSPEED, "--verify"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    assert_eq!(report["file"]["format"], "deepspeed");
    assert_eq!(report["file"]["object"], "checkpoint");
    assert_eq!(report["file"]["producer"], "DeepSpeed 0.18.0");
    assert_eq!(report["verified"]["damaged"], 0);
    let files = report["file"]["files"].as_array().unwrap();
    let ranks: Vec<(&str, &Value, &Value)> = files
        .iter()
        .map(|file| {
            let ranks = &file["ranks"];
            let name = file["name"].as_str().unwrap();
            (name, &ranks["model_parallel"], &ranks["data_parallel"])
        })
        .collect();
    let (zero, one) = (json!(0), json!(1));
    let expected = [
        (STATES[0], &zero, &Value::Null),
        (STATES[1], &zero, &zero),
        (STATES[2], &zero, &one),
    ];
    assert_eq!(ranks, expected);
    let weight = row(&report, "mp_rank_00_model_states.module.0.weight");
    assert_eq!(weight["shape"], json!([4, 6]));
    assert_eq!(weight["role"], "parameter");
    for rank in 0..2 {
        let own = format!(
            "bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.optimizer_state_dict.single_partition_of_fp32_groups.0"
        );
        let part = row(&report, &own);
        assert_eq!(
            (&part["shape"], &part["role"]),
            (&json!([14]), &json!("optimizer"))
        );
    }
    // 28 parameters in bfloat16; 2 parts of 14 in float32, each with two moments and a step.
    assert_eq!(report["totals"]["by_class"]["parameters"], 56);
    assert_eq!(
        report["totals"]["by_class"]["optimizer"],
        2 * (3 * 14 * 4 + 4)
    );
    assert_eq!(codes(&report), [("deepspeed", "")]);
    let message = report["findings"][0]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "ZeRO stage 2, data-parallel ranks: 2, model-parallel ranks: 1, steps: 10"
    );
    let (mut below, _) = self::report(&[&format!("{DEEPSPEED}/global_step10"), "--verify"]);
    below["file"]["path"] = json!(DEEPSPEED);
    assert_eq!(below, report);
}

#[test]
fn ranks_that_deepspeed_lacks_are_named() {
    let folder = deepspeed();
    let below = folder.path().join("global_step10");
    fs::remove_file(below.join(STATES[2])).unwrap();
    fs::write(folder.path().join("latest"), "global_step20").unwrap();
    let (report, said) = report(&[text(&below)]);
    assert_eq!(said.code, Some(2));
    let expected = format!("is incomplete: `{}` is missing", STATES[2]);
    assert!(said.stderr.contains(&expected), "{}", said.stderr);
    let found = codes(&report);
    assert!(found.contains(&("missing-shard", STATES[2])), "{found:?}");
    assert!(
        found.contains(&("not-latest", "global_step10")),
        "{found:?}"
    );
    for (tag, expected) in [
        ("global_step20", "no folder `global_step20`"),
        ("../../etc", "leads out of"),
        ("/etc", "leads out of"),
    ] {
        fs::write(folder.path().join("latest"), tag).unwrap();
        let said = run(&[text(folder.path())]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{tag}");
        assert!(said.stderr.contains(expected), "{tag}: {}", said.stderr);
    }
}

#[test]
fn files_named_like_deepspeeds_are_read_like_others() {
    let folder = deepspeed();
    let below = folder.path().join("global_step10");
    fs::write(below.join("mp_rank_4000000000_model_states.pt"), b"").unwrap();
    let said = run(&[text(&below)]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    assert!(
        said.stderr.contains("mp_rank_4000000000"),
        "{}",
        said.stderr
    );
    let from = below.join(STATES[0]);
    fs::copy(&from, below.join("mp_rank_4000000000_model_states.pt")).unwrap();
    let said = run(&[text(&below)]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    assert!(
        said.stderr.contains("the ranks of one checkpoint exceed"),
        "{}",
        said.stderr
    );
    fs::remove_file(below.join("mp_rank_4000000000_model_states.pt")).unwrap();
    let whole = fs::read(&from).unwrap();
    fs::write(&from, &whole[..whole.len() / 2]).unwrap();
    let said = run(&[text(&below)]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.contains(STATES[0]), "{}", said.stderr);
    assert!(said.stderr.contains("hint: "), "{}", said.stderr);
}
