//! A calibration: what `inspect calibrate` measured on a card, as a file that `--profile` takes anywhere.
//!
//! | measured | used for |
//! |---|---|
//! | the card's facts | the simulated device is like it |
//! | memory outside the allocator after each library's first use | the context, by what a run uses |
//! | where the driver puts new segments | the order of addresses: no range of reserved memory is left |
//! | the workspace of each convolution that cuDNN ran | the simulated cuDNN asks for the same |

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Profile;
use crate::trace::{CardFacts, ConvolutionRun, LibraryUse, Probe};

/// Version of the file.
pub const CALIBRATION_VERSION: u32 = 1;

/// What every calibration says of itself.
const KIND: &str = "inspect-calibration";

/// Where the driver puts a new segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentOrder {
    /// Above the last.
    Up,
    /// Below the last.
    Down,
}

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// `inspect-calibration`.
    pub kind: String,
    /// [`CALIBRATION_VERSION`].
    pub schema_version: u32,
    /// Version of libtorch that was measured with.
    pub libtorch_version: String,
    /// The card.
    pub card: CardFacts,
    /// Memory of the card that others had taken meanwhile, bytes; none where it is not known, and then it is in
    /// `libraries` too.
    pub used_before_bytes: Option<u64>,
    /// Where new segments lie; none where there is no one order.
    pub segment_order: Option<SegmentOrder>,
    /// The process's memory outside the allocator, library by library.
    pub libraries: Vec<LibraryUse>,
    /// The convolutions that were run, sorted, each once.
    pub convolutions: Vec<ConvolutionRun>,
}

/// Why a file is no calibration for this program.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// Not our JSON.
    #[error("it is no calibration: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Another kind of file.
    #[error("it is no calibration: `kind` is `{0}`, expected `{KIND}`")]
    Kind(String),
    /// Another version.
    #[error("its schema version is {0}; this program reads {CALIBRATION_VERSION}: calibrate again")]
    Version(u32),
    /// The simulated device cannot be like it.
    #[error("it describes no card: {0}")]
    Card(&'static str),
}

/// Only what tells a calibration from another file, whatever else is in it.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    schema_version: u32,
}

/// Libraries by the operators that use them: parts of names.
const USED_BY: [(&str, &[&str]); 5] = [
    ("cublas", &["mm", "linear", "matmul", "baddbmm", "addmv"]),
    ("cublaslt", &["addmm", "linear", "_scaled_mm"]),
    ("cudnn", &["cudnn"]),
    ("cufft", &["_fft"]),
    ("cusolver", &["linalg_", "cholesky", "_lu_"]),
];

impl Calibration {
    /// What was measured, as a file.
    #[must_use]
    pub fn new(
        libtorch_version: String,
        probe: Probe,
        convolutions: Vec<ConvolutionRun>,
    ) -> Calibration {
        let mut new = Calibration {
            kind: KIND.to_owned(),
            schema_version: CALIBRATION_VERSION,
            libtorch_version,
            segment_order: segment_order(&probe.segment_addresses),
            card: probe.card,
            used_before_bytes: probe.used_before_bytes,
            libraries: probe.libraries,
            convolutions: Vec::new(),
        };
        new.add(convolutions);
        new
    }

    /// Reads one.
    pub fn parse(text: &[u8]) -> Result<Calibration, CalibrationError> {
        let head: Head = serde_json::from_slice(text)?;
        if head.kind != KIND {
            return Err(CalibrationError::Kind(head.kind));
        }
        if head.schema_version != CALIBRATION_VERSION {
            return Err(CalibrationError::Version(head.schema_version));
        }
        let found: Calibration = serde_json::from_slice(text)?;
        let card = &found.card;
        if card.total_bytes == 0 || card.multiprocessors == 0 {
            return Err(CalibrationError::Card(
                "it has no memory or no multiprocessors",
            ));
        }
        if card.compute_capability.0 == 0 {
            return Err(CalibrationError::Card("it has no compute capability"));
        }
        Ok(found)
    }

    /// Adds convolutions; one that is there already counts with its larger workspace.
    pub fn add(&mut self, convolutions: Vec<ConvolutionRun>) {
        self.convolutions.extend(convolutions);
        // Sorted by convolution, then workspace: of equal convolutions the last is the largest.
        self.convolutions.sort();
        self.convolutions.reverse();
        self.convolutions
            .dedup_by(|next, kept| next.convolution == kept.convolution);
        self.convolutions.reverse();
    }

    /// Whether both are of one kind of card, measured with the same libraries.
    #[must_use]
    pub fn is_like(&self, other: &Calibration) -> bool {
        self.card == other.card && self.libtorch_version == other.libtorch_version
    }

    /// The card as an estimate takes it. Its context is that of a process that uses cuBLAS and cuDNN.
    #[must_use]
    pub fn profile(self) -> Profile {
        let context = |library: &LibraryUse| library.used_bytes;
        let common = self.libraries.iter().filter(|library| {
            ["context", "kernels", "cublas", "cublaslt", "cudnn"]
                .contains(&library.library.as_str())
        });
        let context_bytes = common.filter_map(context).max();
        // The name reaches terminals and the engine's environment.
        let shown = self.card.name.chars().filter(|sign| !sign.is_control());
        let name: String = shown.take(100).collect();
        Profile {
            name: name.clone().into(),
            title: name.into(),
            compute_capability: self.card.compute_capability,
            multiprocessor_count: self.card.multiprocessors,
            total_bytes: self.card.total_bytes,
            context_bytes,
            context_source: match context_bytes {
                Some(_) => "measured on the card by `inspect calibrate`",
                None => "not published",
            },
            measured: Some(Arc::new(self)),
        }
    }

    /// Memory outside the allocator of a process that runs operators of these names: the context and PyTorch's kernels, and what each
    /// library adds that its operators use. None where the context was not measured.
    #[must_use]
    pub fn context_of(&self, ops: &[String]) -> Option<u64> {
        let used = |library: &str| {
            let parts = USED_BY.iter().find(|(name, _)| *name == library);
            parts.is_none_or(|(_, parts)| {
                ops.iter()
                    .filter(|op| op.starts_with("aten::"))
                    .any(|op| parts.iter().any(|part| op.contains(part)))
            })
        };
        let (mut total, mut last) = (None, 0);
        for library in &self.libraries {
            let Some(bytes) = library.used_bytes else {
                continue;
            };
            if used(&library.library) {
                let more = bytes.saturating_sub(last);
                total = Some(total.unwrap_or(0_u64).saturating_add(more));
            }
            last = bytes.max(last);
        }
        total
    }
}

/// None where there are fewer than two, or no one order.
fn segment_order(addresses: &[u64]) -> Option<SegmentOrder> {
    if addresses.len() < 2 {
        None
    } else if addresses.is_sorted() {
        Some(SegmentOrder::Up)
    } else if addresses.iter().rev().is_sorted() {
        Some(SegmentOrder::Down)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Convolution, Pass};

    fn convolution(batch: i64, workspace_bytes: u64) -> ConvolutionRun {
        ConvolutionRun {
            convolution: Convolution {
                pass: Pass::Forward,
                dtype: "float32".to_owned(),
                operations: 1,
                x: vec![batch, 3, 8, 8],
                x_strides: vec![192, 64, 8, 1],
                w: vec![4, 3, 3, 3],
                y: vec![batch, 4, 8, 8],
                stride: vec![1, 1],
                padding: vec![1, 1],
                dilation: vec![1, 1],
            },
            workspace_bytes,
        }
    }

    fn calibration() -> Calibration {
        let library = |library: &str, used: u64| LibraryUse {
            library: library.to_owned(),
            used_bytes: Some(used),
            workspace_bytes: 0,
            unavailable: None,
        };
        Calibration::new(
            "2.11.0".to_owned(),
            Probe {
                card: CardFacts {
                    name: "A card".to_owned(),
                    compute_capability: (8, 9),
                    multiprocessors: 128,
                    total_bytes: 24 << 30,
                    l2_bytes: 72 << 20,
                    driver_version: Some(13000),
                    cudnn_version: None,
                },
                used_before_bytes: Some(0),
                libraries: vec![
                    library("context", 300),
                    library("kernels", 310),
                    library("cublas", 350),
                    library("cublaslt", 352),
                    library("cudnn", 400),
                    library("cufft", 410),
                ],
                segment_addresses: vec![9, 7, 3],
            },
            vec![convolution(8, 5), convolution(1, 0), convolution(8, 7)],
        )
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let written = calibration();
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(Calibration::parse(text.as_bytes()).unwrap(), written);
        assert_eq!(written.segment_order, Some(SegmentOrder::Down));
        // The same convolution twice is one, with the larger workspace.
        assert_eq!(written.convolutions, [convolution(1, 0), convolution(8, 7)]);
    }

    #[test]
    fn other_files_are_refused() {
        let text = serde_json::to_string_pretty(&calibration()).unwrap();
        for (from, to, message) in [
            ("inspect-calibration", "recipe", "`kind` is `recipe`"),
            (
                "\"schema_version\": 1",
                "\"schema_version\": 9",
                "version is 9",
            ),
            (
                "\"total_bytes\": 25769803776",
                "\"total_bytes\": 0",
                "no memory",
            ),
            ("\"libtorch_version\"", "\"libtorch\"", "unknown field"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Calibration::parse(text.replace(from, to).as_bytes()).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        assert!(Calibration::parse(b"[1]").is_err());
    }

    #[test]
    fn a_card_needs_a_context_for_what_is_used() {
        let profile = calibration().profile();
        assert_eq!(profile.context_bytes, Some(400));
        assert_eq!(profile.compute_capability, (8, 9));
        let measured = calibration();
        for (op, bytes) in [
            ("aten::relu", 310),
            ("aten::mm", 350),
            ("aten::addmm", 352),
            ("aten::cudnn_convolution", 358),
            ("aten::_fft_r2c", 320),
        ] {
            let ops = ["conv1.mm".to_owned(), op.to_owned()];
            assert_eq!(measured.context_of(&ops), Some(bytes), "{op}");
        }
    }

    #[test]
    fn an_order_is_one_that_all_segments_have() {
        assert_eq!(segment_order(&[1, 2, 3]), Some(SegmentOrder::Up));
        assert_eq!(segment_order(&[3, 2, 1]), Some(SegmentOrder::Down));
        assert_eq!(segment_order(&[1, 3, 2]), None);
        assert_eq!(segment_order(&[1]), None);
    }
}
