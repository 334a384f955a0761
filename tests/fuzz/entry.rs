//! What each fuzz target does with its bytes; also run on the corpus by a normal test.
//!
//! Reading must neither panic nor take long, whatever the bytes; and what is read must add up.
//!
//! The last run of 10 minutes each found nothing. Executions, on a machine busy with other work: pickle 4,641,677,
//! object 1,765,121, safetensors 370,699, detect 352,432, zip 265,785, tar 169,566, legacy 78,439, script 62,850.

use std::path::Path;

use inspect_checkpoint::checkpoint::Checkpoint;
use inspect_checkpoint::format::{
    FormatError, ReadOptions, check_dcp, check_index, loadable, pickle, read_inputs, read_source,
    verify,
};
use inspect_checkpoint::source::Source;

/// The target of this name; `None` when there is no such target.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    Some(match name {
        "detect" | "zip" | "legacy" | "tar" | "safetensors" | "package" => file,
        "pickle" => machine,
        "object" => object,
        "script" => script,
        "index" => index,
        "exported" => exported,
        "dcp" => dcp,
        _ => return None,
    })
}

/// Bytes as a file of whatever kind they are.
pub fn file(data: &[u8]) {
    let source = Source::from_bytes(Path::new("fuzz"), data.to_vec());
    check(read_source(&source, &ReadOptions::default()), data.len());
    if let Ok(inputs) = read_inputs(&source) {
        drop(inputs);
    }
}

/// Bytes as a pickle alone.
pub fn machine(data: &[u8]) {
    let Ok(pickle) = pickle::parse(data) else {
        return;
    };
    assert!(pickle.consumed() <= data.len());
    for id in pickle.ids() {
        let _ = (
            pickle.repr(id),
            pickle.kind(id),
            pickle.plain_key(id),
            pickle.text(id),
        );
        for item in pickle.items(id) {
            assert!(item.index() < pickle.len());
        }
        assert!(pickle.entries(pickle.pairs(id)).len() * 2 <= pickle.pairs(id).len());
    }
}

/// Bytes as the pickle of a `torch.save` archive that is otherwise in order.
pub fn object(data: &[u8]) {
    let records = [
        ("a/data.pkl", data),
        ("a/data/0", &[0; 64]),
        ("a/data/1", &[0; 8]),
    ];
    file(&archive(&records));
}

/// Bytes as code and pickle of a TorchScript archive, cut at the first NUL.
pub fn script(data: &[u8]) {
    let cut = data.iter().position(|&b| b == 0).unwrap_or(data.len());
    let (code, object) = data.split_at(cut);
    let records = [
        ("a/data.pkl", object.get(1..).unwrap_or(&[])),
        ("a/data/0", &[0; 64]),
        ("a/code/__torch__.py", code),
        ("a/constants.pkl", b"\x80\x02)."),
    ];
    file(&archive(&records));
}

/// Bytes as graph and list of weights of an exported program, cut at the first NUL; and as what libtorch would be given
/// for it.
pub fn exported(data: &[u8]) {
    let cut = data.iter().position(|&b| b == 0).unwrap_or(data.len());
    let (model, weights) = data.split_at(cut);
    let records: [(&str, &[u8]); 6] = [
        ("a/models/model.json", model),
        (
            "a/data/weights/model_weights_config.json",
            weights.get(1..).unwrap_or(&[]),
        ),
        ("a/data/weights/weight_0", &[0; 256]),
        ("a/data/weights/weight_1", &[0; 64]),
        ("a/data/weights/weight_2", &[0; 8]),
        ("a/archive_format", b"pt2"),
    ];
    let bytes = archive(&records);
    file(&bytes);
    let source = Source::from_bytes(Path::new("fuzz"), bytes);
    let Ok(script) = loadable(&source, "cpu", false) else {
        return;
    };
    let mut whole = Vec::new();
    for piece in &script.pieces {
        let from = if piece.in_head {
            &script.head
        } else {
            source.bytes()
        };
        let start = usize::try_from(piece.offset).unwrap();
        let end = start + usize::try_from(piece.bytes).unwrap();
        whole.extend(&from[start..end]);
    }
    let source = Source::from_bytes(Path::new("fuzz"), whole);
    drop(read_source(&source, &ReadOptions::default()));
}

/// Bytes as the index of a sharded checkpoint, without its shards.
pub fn index(data: &[u8]) {
    match check_index(data) {
        Ok(names) => assert!(names <= data.len()),
        Err(error) => assert!(error.to_string().len() < 4096),
    }
}

/// Bytes as the metadata of a distributed checkpoint, without its files.
pub fn dcp(data: &[u8]) {
    match check_dcp(data) {
        Ok(tensors) => assert!(tensors <= data.len()),
        Err(error) => assert!(error.to_string().len() < 4096),
    }
}

fn check(result: Result<Checkpoint, FormatError>, length: usize) {
    match result {
        Ok(checkpoint) => {
            let totals = checkpoint.totals();
            let in_file: u64 = checkpoint.storages().iter().map(|s| s.file_bytes()).sum();
            assert_eq!(in_file + totals.overhead_bytes, length as u64);
            assert_eq!(totals.tensors, checkpoint.tensors().len() as u64);
            for tensor in checkpoint.tensors() {
                if let Some(id) = tensor.storage() {
                    assert!(checkpoint.storage(id).is_some());
                }
            }
            if length < 1 << 16 {
                let source = Source::from_bytes(Path::new("fuzz"), vec![0; length]);
                // Other bytes than those read: any answer will do, but there must be one.
                let _ = verify(&source, &checkpoint);
            }
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.len() < 4096, "{text}");
            let _ = error.hint();
        }
    }
}

/// A zip archive of stored records.
fn archive(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    for (name, contents) in records {
        let length = u32::try_from(contents.len()).unwrap_or(0);
        let name_length = u16::try_from(name.len()).unwrap_or(0);
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        common.extend(crc32fast::hash(contents).to_le_bytes());
        common.extend(length.to_le_bytes());
        common.extend(length.to_le_bytes());
        common.extend(name_length.to_le_bytes());
        common.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(u32::try_from(out.len()).unwrap_or(0).to_le_bytes());
        directory.extend(name.as_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(name.as_bytes());
        out.extend(*contents);
    }
    let start = u32::try_from(out.len()).unwrap_or(0);
    let count = u16::try_from(records.len()).unwrap_or(0);
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(u32::try_from(directory.len()).unwrap_or(0).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}
