//! GPUs by name: what the simulated device needs to know of a card, with the source of each number.
//!
//! The CUDA context is outside PyTorch's allocator: what public measurements show with lazy loading (CUDA 11.7 and
//! later), plus or minus some ten MiB, or unknown.
//!
//! | number | source |
//! |---|---|
//! | compute capability | NVIDIA's list of CUDA GPUs, developer.nvidia.com/cuda-gpus |
//! | multiprocessors | NVIDIA's whitepaper of the card's architecture, see [`Profile::multiprocessor_source`] |
//! | memory | what nvidia-smi reports for the card |
//! | context | see [`Profile::context_source`] |

use std::borrow::Cow;
use std::sync::Arc;

use super::Calibration;

const MIB: u64 = 1 << 20;

/// One kind of card.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Name on the command line; NVIDIA's for a card that was measured.
    pub name: Cow<'static, str>,
    /// NVIDIA's name.
    pub title: Cow<'static, str>,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessor_count: u32,
    /// Memory as the CUDA runtime reports it where that is published, else the nominal size.
    pub total_bytes: u64,
    /// Memory of the CUDA context; none where nobody has published it.
    pub context_bytes: Option<u64>,
    /// Where the context's size comes from.
    pub context_source: &'static str,
    /// What was measured on it, where the profile comes from a calibration.
    pub measured: Option<Arc<Calibration>>,
}

impl Profile {
    /// Where the number of multiprocessors comes from.
    #[must_use]
    pub fn multiprocessor_source(&self) -> &'static str {
        match self.compute_capability {
            (7, 0) => "NVIDIA Tesla V100 GPU Architecture, WP-08608",
            (7, 5) => "NVIDIA Turing GPU Architecture, WP-09183",
            (8, 0) => "NVIDIA A100 Tensor Core GPU Architecture",
            (8, 6) => "NVIDIA Ampere GA102 GPU Architecture, and the cards' data sheets",
            (8, 9) => "NVIDIA Ada GPU Architecture, and the cards' data sheets",
            (9, 0) => "NVIDIA H100 Tensor Core GPU Architecture, and the H200's data sheet",
            (10, 0) => "NVIDIA Blackwell Architecture Technical Brief",
            (12, 0) => "NVIDIA RTX Blackwell GPU Architecture, and the cards' data sheets",
            _ => "not published",
        }
    }
}

const fn card(
    name: &'static str,
    title: &'static str,
    compute_capability: (u32, u32),
    multiprocessor_count: u32,
    total_mib: u64,
    context: Option<u64>,
) -> Profile {
    Profile {
        name: Cow::Borrowed(name),
        title: Cow::Borrowed(title),
        compute_capability,
        multiprocessor_count,
        total_bytes: total_mib * MIB,
        context_bytes: match context {
            Some(mib) => Some(mib * MIB),
            None => None,
        },
        context_source: match context {
            Some(_) => {
                "public measurements of an idle PyTorch process, lazy loading, within about 10 MiB"
            }
            None => "not published",
        },
        measured: None,
    }
}

/// Every card this version knows.
pub const PROFILES: &[Profile] = &[
    card("t4", "Tesla T4", (7, 5), 40, 15_360, Some(130)),
    card("v100-16g", "Tesla V100 16 GB", (7, 0), 80, 16_160, None),
    card("v100-32g", "Tesla V100 32 GB", (7, 0), 80, 32_510, None),
    card("a10", "A10", (8, 6), 72, 23_028, Some(224)),
    card("a40", "A40", (8, 6), 84, 46_068, None),
    card("a100-40g", "A100 40 GB", (8, 0), 108, 40_960, Some(501)),
    card("a100-80g", "A100 80 GB", (8, 0), 108, 81_920, Some(512)),
    card(
        "rtx-3060",
        "GeForce RTX 3060 12 GB",
        (8, 6),
        28,
        12_288,
        None,
    ),
    card(
        "rtx-3080",
        "GeForce RTX 3080 10 GB",
        (8, 6),
        68,
        10_240,
        None,
    ),
    card(
        "rtx-3090",
        "GeForce RTX 3090",
        (8, 6),
        82,
        24_576,
        Some(256),
    ),
    card("rtx-a6000", "RTX A6000", (8, 6), 84, 49_140, None),
    card("rtx-4060", "GeForce RTX 4060", (8, 9), 24, 8_188, None),
    card("rtx-4070", "GeForce RTX 4070", (8, 9), 46, 12_282, None),
    card("rtx-4080", "GeForce RTX 4080", (8, 9), 76, 16_376, None),
    DEFAULT_PROFILE,
    card(
        "rtx-6000-ada",
        "RTX 6000 Ada Generation",
        (8, 9),
        142,
        49_140,
        Some(426),
    ),
    card("l4", "L4", (8, 9), 58, 23_034, None),
    card("l40s", "L40S", (8, 9), 142, 46_068, Some(514)),
    card("h100", "H100 SXM 80 GB", (9, 0), 132, 81_559, Some(512)),
    card(
        "h100-pcie",
        "H100 PCIe 80 GB",
        (9, 0),
        114,
        81_559,
        Some(512),
    ),
    card("h200", "H200", (9, 0), 132, 143_771, None),
    card("b200", "B200", (10, 0), 148, 183_359, None),
    card("rtx-5080", "GeForce RTX 5080", (12, 0), 84, 16_303, None),
    card("rtx-5090", "GeForce RTX 5090", (12, 0), 170, 32_607, None),
    card(
        "rtx-pro-6000",
        "RTX PRO 6000 Blackwell 96 GB",
        (12, 0),
        188,
        97_887,
        Some(640),
    ),
];

/// The card that estimates are for when nothing else is said: a common one with 24 GB.
pub const DEFAULT_PROFILE: Profile = card(
    "rtx-4090",
    "GeForce RTX 4090",
    (8, 9),
    128,
    24_564,
    Some(468),
);

/// Why a profile was not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no profile `{name}`: expected one of {}", names())]
pub struct UnknownProfile {
    /// What was asked for.
    pub name: String,
}

fn names() -> String {
    PROFILES
        .iter()
        .map(|profile| profile.name.as_ref())
        .collect::<Vec<_>>()
        .join(", ")
}

impl Profile {
    /// The card with the context that a run of operators of these names needs, where that was measured.
    #[must_use]
    pub fn for_run(&self, ops: &[String]) -> Profile {
        let measured = self.measured.as_ref();
        let context = measured.and_then(|measured| measured.context_of(ops));
        Profile {
            context_bytes: context.or(self.context_bytes),
            ..self.clone()
        }
    }

    /// The card with a context in any case, for an answer that must hold: the largest one published where nobody has
    /// published this card's.
    #[must_use]
    pub fn with_some_context(&self) -> Profile {
        if self.context_bytes.is_some() {
            return self.clone();
        }
        Profile {
            context_bytes: Profile::largest_context(),
            context_source: "not published for this card; taken to be as large as the largest that is published",
            ..self.clone()
        }
    }

    /// The largest context of any card that one is known of.
    #[must_use]
    pub fn largest_context() -> Option<u64> {
        PROFILES
            .iter()
            .filter_map(|profile| profile.context_bytes)
            .max()
    }

    /// The card of that name; case does not matter.
    pub fn find(name: &str) -> Result<&'static Profile, UnknownProfile> {
        PROFILES
            .iter()
            .find(|profile| profile.name.eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownProfile {
                name: name.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_by_their_one_name() {
        for profile in PROFILES {
            assert_eq!(Profile::find(&profile.name.to_uppercase()), Ok(profile));
            let alike = PROFILES
                .iter()
                .filter(|other| other.name == profile.name)
                .count();
            assert_eq!(alike, 1, "{}", profile.name);
        }
        let error = Profile::find("rtx-9999").unwrap_err();
        assert!(error.to_string().contains("rtx-4090"));
    }

    #[test]
    fn a_card_without_a_context_gets_the_largest() {
        let known = Profile::find("t4").unwrap();
        assert_eq!(&known.with_some_context(), known);
        let unknown = Profile::find("rtx-4060").unwrap();
        assert_eq!(unknown.context_bytes, None);
        assert_eq!(unknown.with_some_context().context_bytes, Some(640 * MIB));
    }

    #[test]
    fn every_number_has_a_source() {
        for profile in PROFILES {
            assert!(
                profile.multiprocessor_source().starts_with("NVIDIA"),
                "{}",
                profile.name
            );
            let known = profile.context_source != "not published";
            assert_eq!(known, profile.context_bytes.is_some(), "{}", profile.name);
        }
    }

    #[test]
    fn the_default_is_a_24_gb_card() {
        let total = DEFAULT_PROFILE.total_bytes;
        assert!((23 << 30..=24 << 30).contains(&total));
    }
}
