//! What a file is, by its content and never by its name.

use super::error::FormatError;
use super::pickle::cut;
use super::several::index::is_index;
use crate::limits;

/// A kind of file that there is a reader for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detected {
    /// A zip archive, whatever is in it.
    Zip,
    /// safetensors.
    Safetensors,
    /// A stream of pickles that starts with torch's magic number.
    Legacy,
    /// A tar.
    Tar,
    /// A pickle.
    Pickle,
    /// The index of a sharded checkpoint (JSON).
    Index,
}

/// The number that a legacy file starts with, 0x1950a86a20f9469cfc6c, as pickled by protocol 1 and up.
const LEGACY_MAGIC: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

/// The same number in protocol 0.
const LEGACY_MAGIC_TEXT: &[u8] = b"L119547037146038801333356L\n.";

/// Leading bytes that name a kind of file: at an offset, these bytes, are this.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, b"\x1f\x8b", "compressed with gzip"),
    (0, b"BZh", "compressed with bzip2"),
    (0, b"\xfd7zXZ\0", "compressed with xz"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!", "a RAR archive"),
    (0, b"\x93NUMPY", "a numpy array (.npy)"),
    (0, b"GGUF", "a GGUF model (llama.cpp)"),
    (0, b"tjgg", "a GGML model (llama.cpp)"),
    (0, b"lmgg", "a GGML model (llama.cpp)"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras, TensorFlow)"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"PTMF", "a PyTorch mobile model in flatbuffer form"),
    (4, b"ET12", "an ExecuTorch program"),
    (4, b"ET11", "an ExecuTorch program"),
    (4, b"ORTM", "an ONNX Runtime model"),
    (0, b"\x7fELF", "an ELF binary"),
    (0, b"MZ", "a Windows executable"),
    (0, b"\xcf\xfa\xed\xfe", "a Mach-O binary"),
    (0, b"\xca\xfe\xba\xbe", "a Mach-O binary or Java class"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"BM", "a BMP image"),
    (0, b"RIFF", "a RIFF file (WAV, WebP, AVI)"),
    (4, b"ftyp", "an MP4 video"),
    (0, b"%PDF", "a PDF document"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"ARROW1", "an Arrow file"),
    (0, b"OggS", "an Ogg file"),
    (0, b"ID3", "an MP3 file"),
];

/// What a file is, or that it is nothing this tool reads.
pub(crate) fn detect(data: &[u8]) -> Result<Detected, FormatError> {
    if data.is_empty() {
        return Err(no_checkpoint("empty (0 bytes)", None));
    }
    if data.starts_with(b"PK\x03\x04") {
        return Ok(Detected::Zip);
    }
    if data.starts_with(b"PK\x05\x06") {
        return Err(no_checkpoint("a zip archive without members", None));
    }
    // Before anything that looks at the first bytes alone: a header length can have any of their values.
    if is_safetensors(data) {
        return Ok(Detected::Safetensors);
    }
    if is_legacy(data) {
        return Ok(Detected::Legacy);
    }
    if is_tar(data) {
        return Ok(Detected::Tar);
    }
    if let Some(named) = signature(data).or_else(|| model_of_others(data)) {
        return Err(named);
    }
    if matches!(data, [0x80, 2..=5, ..]) {
        return Ok(Detected::Pickle);
    }
    if is_index(data) {
        return Ok(Detected::Index);
    }
    if let Some(named) = text(data) {
        return Err(named);
    }
    if is_pickle_of_protocol_0_or_1(data) {
        return Ok(Detected::Pickle);
    }
    if data.iter().all(|&b| b == 0) {
        return Err(no_checkpoint(
            &format!("nothing but {} zero bytes", data.len()),
            Some("the download or copy was probably interrupted: fetch the file again"),
        ));
    }
    // An opcode that pickles start with, though the rest does not parse: the pickle reader says where.
    if matches!(data, [0x80, _, ..]) {
        return Ok(Detected::Pickle);
    }
    let shown: Vec<String> = data.iter().take(8).map(|b| format!("{b:02x}")).collect();
    Err(no_checkpoint(
        &format!(
            "of an unknown kind, starting with bytes {}",
            shown.join(" ")
        ),
        None,
    ))
}

fn no_checkpoint(what: &str, hint: Option<&'static str>) -> FormatError {
    FormatError::NotACheckpoint {
        what: what.to_owned(),
        hint,
    }
}

fn is_safetensors(data: &[u8]) -> bool {
    let Some((length, rest)) = data.split_first_chunk::<8>() else {
        return false;
    };
    // Eight characters of text before a brace would mean a header of 2^59 bytes.
    let number = u64::from_le_bytes(*length);
    let text = length
        .iter()
        .all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace());
    rest.first() == Some(&b'{') && (number <= limits::SAFETENSORS_HEADER_BYTES || !text)
}

fn is_legacy(data: &[u8]) -> bool {
    let body = match data {
        // PROTO, and from protocol 4 on FRAME with its length.
        [0x80, 4..=5, 0x95, rest @ ..] => rest.get(8..).unwrap_or(&[]),
        [0x80, 2..=5, rest @ ..] => rest,
        other => other,
    };
    body.starts_with(LEGACY_MAGIC)
        || body.starts_with(LEGACY_MAGIC_TEXT)
        // MEMOIZE between the number and STOP.
        || (body.get(..12) == LEGACY_MAGIC.get(..12) && body.get(12..14) == Some(b"\x94."))
}

fn is_tar(data: &[u8]) -> bool {
    data.get(257..262) == Some(b"ustar") || data.starts_with(b"sys_info\0")
}

fn signature(data: &[u8]) -> Option<FormatError> {
    let (_, _, what) = SIGNATURES.iter().find(|(offset, bytes, _)| {
        data.get(*offset..)
            .is_some_and(|rest| rest.starts_with(bytes))
    })?;
    let hint = match *what {
        what if what.starts_with("compressed") => Some("unpack it first"),
        "a PyTorch mobile model in flatbuffer form" => {
            Some("save it with `_save_for_lite_interpreter` and without `use_flatbuffer`")
        }
        _ => None,
    };
    Some(no_checkpoint(what, hint))
}

/// Models of other frameworks that have no signature.
fn model_of_others(data: &[u8]) -> Option<FormatError> {
    // The footer of a table of key-value pairs.
    if data.ends_with(b"\x57\xfb\x80\x8b\x24\x75\x47\xdb") {
        return Some(no_checkpoint("the index of a TensorFlow checkpoint", None));
    }
    let head = data.get(..data.len().min(4096)).unwrap_or(data);
    let has = |text: &[u8]| head.windows(text.len()).any(|w| w == text);
    match data {
        // ModelProto: ir_version, then producer, version, domain or graph.
        [
            0x08,
            1..=31,
            0x12 | 0x1a | 0x22 | 0x2a | 0x32 | 0x3a | 0x42,
            ..,
        ] if has(b"onnx") || has(b"pytorch") || has(b"torch") || has(b"ai.") || printable(data) => {
            Some(no_checkpoint("an ONNX model", None))
        }
        // SavedModel: schema version 1, then a MetaGraphDef.
        [0x08, 0x01, 0x12, ..] => Some(no_checkpoint("a TensorFlow SavedModel", None)),
        [0x0a, ..] if has(b"Placeholder") || has(b"Const") || has(b"VarHandleOp") => {
            Some(no_checkpoint("a TensorFlow graph", None))
        }
        _ => None,
    }
}

/// Whether the string field after the version is short and printable: a producer's name.
fn printable(data: &[u8]) -> bool {
    let length = data.get(3).map_or(0, |&l| usize::from(l));
    let name = 4_usize.checked_add(length).and_then(|end| data.get(4..end));
    length > 0
        && length < 64
        && name.is_some_and(|n| n.iter().all(|b| b.is_ascii_graphic() || *b == b' '))
}

/// Files that are text.
fn text(data: &[u8]) -> Option<FormatError> {
    let head = data.get(..data.len().min(2048)).unwrap_or(data);
    let start = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.valid_up_to().saturating_add(4) > head.len() => {
            std::str::from_utf8(head.get(..error.valid_up_to())?).ok()?
        }
        Err(_) => return None,
    };
    if start
        .chars()
        .any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{c}'))
    {
        return None;
    }
    let trimmed = start.trim_start_matches('\u{feff}').trim_start();
    let lower = trimmed
        .get(..trimmed.len().min(64))
        .unwrap_or(trimmed)
        .to_ascii_lowercase();
    if start.starts_with("version https://git-lfs") {
        return Some(no_checkpoint(
            "a Git LFS pointer, which stands for the real file",
            Some("fetch the real file with `git lfs pull`"),
        ));
    }
    if lower.starts_with("<!doctype html")
        || lower.starts_with("<html")
        || lower.starts_with("<head")
    {
        return Some(no_checkpoint(
            "an HTML page",
            Some("the download gave a web page (a login or an error) instead of the file"),
        ));
    }
    if trimmed.starts_with('<') {
        return Some(no_checkpoint(
            "an XML or HTML document",
            Some("the download gave an answer of the server instead of the file"),
        ));
    }
    if trimmed.starts_with('{') || trimmed.starts_with('[') {
        return Some(no_checkpoint("JSON text", None));
    }
    // Pickles of protocol 0 are text too.
    if is_pickle_of_protocol_0_or_1(data) {
        return None;
    }
    let line = trimmed.lines().next().unwrap_or("");
    Some(no_checkpoint(
        &format!("text, starting with `{}`", cut(line).escape_debug()),
        None,
    ))
}

/// A pickle without a PROTO opcode: only what parses from end to end counts, as any byte could start one.
fn is_pickle_of_protocol_0_or_1(data: &[u8]) -> bool {
    let first = matches!(
        data.first(),
        Some(
            b'(' | b']'
                | b'}'
                | b')'
                | b'c'
                | b'N'
                | b'K'
                | b'I'
                | b'L'
                | b'F'
                | b'G'
                | b'S'
                | b'V'
                | b'X'
                | b'U'
                | b'i'
        )
    );
    first && data.len() > 2 && super::pickle::parse(data).is_ok()
}

/// A zip archive that is none of PyTorch's, by what is in it.
pub(crate) fn other_zip<'m>(names: impl Iterator<Item = &'m str>) -> FormatError {
    let names: Vec<&str> = names.collect();
    let ends = |extensions: &[&str]| {
        names.iter().copied().find(|name| {
            std::path::Path::new(name)
                .extension()
                .is_some_and(|found| extensions.iter().any(|e| found.eq_ignore_ascii_case(e)))
        })
    };
    let starts = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    let what = if starts("[Content_Types].xml") {
        "an Office document".to_owned()
    } else if starts("META-INF/") {
        "a Java archive".to_owned()
    } else if names.contains(&"model.weights.h5") {
        "a Keras model".to_owned()
    } else if ends(&["npy"]).is_some() {
        "a numpy archive (.npz)".to_owned()
    } else if starts("Data/com.apple.CoreML") {
        "a Core ML model".to_owned()
    } else if let Some(inner) = ends(&["pt", "pth", "ptl", "bin", "ckpt", "safetensors", "th"]) {
        return no_checkpoint(
            &format!("a zip archive that holds `{}`", cut(inner)),
            Some("unpack it first"),
        );
    } else if names
        .iter()
        .any(|name| name.contains("/data/") && !name.ends_with('/'))
    {
        "a zip archive like those of `torch.save`, but without `data.pkl`".to_owned()
    } else {
        let first = names
            .first()
            .map_or(String::new(), |n| format!(", first `{}`", cut(n)));
        format!("a zip archive of {} members{first}", names.len())
    };
    no_checkpoint(&what, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(data: &[u8]) -> String {
        match detect(data) {
            Ok(kind) => format!("{kind:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn by_content() {
        assert_eq!(name(b"PK\x03\x04"), "Zip");
        assert_eq!(
            name(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.rest"),
            "Legacy"
        );
        assert_eq!(
            name(b"\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\x94."),
            "Legacy"
        );
        assert_eq!(name(b"L119547037146038801333356L\n."), "Legacy");
        // A header of 0x2078 bytes is no zlib stream.
        assert_eq!(name(b"\x78\x20\0\0\0\0\0\0{\"a\":"), "Safetensors");
        assert_eq!(name(b"\xff\xff\xff\xff\xff\xff\xff\xff{}"), "Safetensors");
        assert_eq!(name(b"\x80\x02N."), "Pickle");
        assert_eq!(name(b"(lp0\nI1\na."), "Pickle");
        for (data, part) in [
            (&b""[..], "empty"),
            (b"PK\x05\x06", "without members"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"  \n<!DOCTYPE html><html>", "HTML"),
            (b"<?xml version=\"1.0\"?><Error/>", "XML"),
            (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
            (b"\0\0\0\0", "zero bytes"),
            (b"\x89PNG\r\n\x1a\n", "PNG"),
            (b"\x08\x07\x12\x07pytorch\x1a", "ONNX"),
            (b"\x08\x01\x12\xff\x80\x01", "SavedModel"),
            (b"\x93NUMPY\x01\0", "numpy"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"{\"weight_map\": {}}", "Index"),
            (b"import torch\n", "text, starting with `import torch`"),
            (
                b"\x02\x01\xfe\xfd",
                "unknown kind, starting with bytes 02 01 fe fd",
            ),
        ] {
            assert!(name(data).contains(part), "{} for {part}", name(data));
        }
    }
}
