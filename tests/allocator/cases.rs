//! Every mode of the allocator that is compared with the real one.

use super::traces::{MIB, Mix};

const GIB: u64 = 1 << 30;

/// Settings at the start, the device's memory, and what the trace does besides allocating and freeing.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) settings: &'static str,
    pub(crate) total_bytes: u64,
    pub(crate) mix: Mix,
}

const fn case(name: &'static str, settings: &'static str, total_bytes: u64, mix: Mix) -> Case {
    Case {
        name,
        settings,
        total_bytes,
        mix,
    }
}

const PLAIN: Mix = Mix {
    streams: 1,
    empty_ppm: 0,
    fraction_ppm: 0,
    settings: &[],
};

const fn streams(streams: u64, empty_ppm: u64) -> Mix {
    Mix {
        streams,
        empty_ppm,
        ..PLAIN
    }
}

const fn empty(empty_ppm: u64) -> Mix {
    streams(1, empty_ppm)
}

const fn fraction(fraction_ppm: u64) -> Mix {
    Mix {
        fraction_ppm,
        ..PLAIN
    }
}

const fn settings(streams: u64, empty_ppm: u64, settings: &'static [&'static str]) -> Mix {
    Mix {
        streams,
        empty_ppm,
        settings,
        ..PLAIN
    }
}

pub(crate) const CASES: &[Case] = &[
    case("default", "", 64 * GIB, PLAIN),
    case("default-streams", "", 64 * GIB, streams(3, 0)),
    case("default-empty", "", 64 * GIB, empty(2000)),
    case("oom", "", GIB, empty(500)),
    case("oom-tight", "", 192 * MIB, streams(2, 0)),
    case(
        "fraction",
        "per_process_memory_fraction:0.5",
        2 * GIB,
        PLAIN,
    ),
    case("setfraction", "", 2 * GIB, fraction(1000)),
    case("split32", "max_split_size_mb:32", 64 * GIB, PLAIN),
    case("split20", "max_split_size_mb:20", 64 * GIB, PLAIN),
    case("split64-oom", "max_split_size_mb:64", GIB, streams(2, 500)),
    case("split20-oom", "max_split_size_mb:20", 700 * MIB, PLAIN),
    case(
        "split-rounding",
        "max_split_size_mb:32,max_non_split_rounding_mb:64",
        GIB,
        PLAIN,
    ),
    case("pow2-2", "roundup_power2_divisions:2", 64 * GIB, PLAIN),
    case("pow2-8", "roundup_power2_divisions:8", 64 * GIB, PLAIN),
    case("pow2-16-oom", "roundup_power2_divisions:16", GIB, PLAIN),
    case(
        "pow2-table",
        "roundup_power2_divisions:[1:4,2:8,8:0,16:2,>:16]",
        64 * GIB,
        PLAIN,
    ),
    case(
        "pow2-gt-only",
        "roundup_power2_divisions:[>:8]",
        64 * GIB,
        PLAIN,
    ),
    case(
        "pow2-gaps",
        "roundup_power2_divisions:[4:4,64:8]",
        64 * GIB,
        PLAIN,
    ),
    case(
        "pow2-1024",
        "roundup_power2_divisions:1024",
        64 * GIB,
        PLAIN,
    ),
    case(
        "pow2-table2",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        64 * GIB,
        PLAIN,
    ),
    case(
        "pow2-split-oom",
        "roundup_power2_divisions:4,max_split_size_mb:32",
        GIB,
        PLAIN,
    ),
    case("largeseg64", "large_segment_size_mb:64", 64 * GIB, PLAIN),
    case("largeseg11-oom", "large_segment_size_mb:11", GIB, PLAIN),
    case("largeseg64-oom", "large_segment_size_mb:64", GIB, PLAIN),
    case(
        "largeseg48-split",
        "large_segment_size_mb:48,max_split_size_mb:64",
        GIB,
        PLAIN,
    ),
    case(
        "gc",
        "garbage_collection_threshold:0.6",
        2 * GIB,
        fraction(500),
    ),
    case(
        "gc-fraction",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
        2 * GIB,
        streams(2, 0),
    ),
    case(
        "gc-split",
        "garbage_collection_threshold:0.4,per_process_memory_fraction:0.9,max_split_size_mb:32",
        2 * GIB,
        PLAIN,
    ),
    case(
        "gc-nofraction",
        "garbage_collection_threshold:0.3",
        2 * GIB,
        PLAIN,
    ),
    case(
        "gc-low",
        "garbage_collection_threshold:0.05,per_process_memory_fraction:0.9",
        2 * GIB,
        PLAIN,
    ),
    case(
        "gc-streams",
        "garbage_collection_threshold:0.3,per_process_memory_fraction:0.7,max_split_size_mb:20",
        GIB,
        streams(3, 200),
    ),
    case("expandable", "expandable_segments:True", 64 * GIB, PLAIN),
    case(
        "expandable-streams",
        "expandable_segments:True",
        64 * GIB,
        streams(3, 1000),
    ),
    case(
        "expandable-empty",
        "expandable_segments:True",
        64 * GIB,
        empty(2000),
    ),
    case(
        "expandable-oom",
        "expandable_segments:True",
        GIB,
        streams(2, 500),
    ),
    case(
        "expandable-oom-tight",
        "expandable_segments:True",
        192 * MIB,
        streams(2, 0),
    ),
    case(
        "expandable-fraction",
        "expandable_segments:True,per_process_memory_fraction:0.5",
        2 * GIB,
        PLAIN,
    ),
    case(
        "expandable-pow2",
        "expandable_segments:True,roundup_power2_divisions:4",
        GIB,
        PLAIN,
    ),
    case(
        "expandable-split",
        "expandable_segments:True,max_split_size_mb:32",
        GIB,
        PLAIN,
    ),
    case(
        "expandable-largeseg",
        "expandable_segments:True,large_segment_size_mb:64",
        GIB,
        empty(1000),
    ),
    case(
        "expandable-gc",
        "expandable_segments:True,garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
        2 * GIB,
        PLAIN,
    ),
    case(
        "reparse",
        "max_split_size_mb:32,roundup_power2_divisions:4",
        GIB,
        settings(
            1,
            0,
            &[
                "max_non_split_rounding_mb:40",
                "roundup_power2_divisions:2",
                "large_segment_size_mb:24",
            ],
        ),
    ),
    case(
        "reparse-rounding",
        "max_split_size_mb:64",
        2 * GIB,
        settings(
            1,
            0,
            &[
                "max_split_size_mb:64,max_non_split_rounding_mb:100",
                "max_split_size_mb:64",
                "max_split_size_mb:64,large_segment_size_mb:40",
                "max_split_size_mb:64,large_segment_size_mb:20",
            ],
        ),
    ),
    case(
        "toggle-expandable",
        "",
        GIB,
        settings(
            2,
            500,
            &["expandable_segments:True", "expandable_segments:False"],
        ),
    ),
    case(
        "toggle-all",
        "",
        GIB,
        Mix {
            fraction_ppm: 500,
            ..settings(
                1,
                500,
                &[
                    "expandable_segments:True",
                    "expandable_segments:False",
                    "roundup_power2_divisions:4",
                    "garbage_collection_threshold:0.5",
                ],
            )
        },
    ),
    case(
        "toggle-largeseg",
        "large_segment_size_mb:30",
        GIB,
        settings(
            1,
            500,
            &[
                "large_segment_size_mb:40",
                "large_segment_size_mb:20",
                "expandable_segments:True",
                "expandable_segments:False",
            ],
        ),
    ),
];
