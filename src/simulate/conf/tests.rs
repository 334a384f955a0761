use super::*;

fn error(text: &str) -> AllocConfError {
    AllocConf::parse(text).unwrap_err()
}

#[test]
fn documented_settings() {
    let conf = AllocConf::parse(
        "max_split_size_mb:128, garbage_collection_threshold:0.8,expandable_segments:True",
    )
    .unwrap();
    assert_eq!(conf.max_split_bytes, Some(128 * MIB));
    assert!((conf.garbage_collection_threshold - 0.8).abs() < 1e-12);
    assert!(conf.expandable_segments);
    assert_eq!(AllocConf::parse("").unwrap(), AllocConf::default());
    let conf = AllocConf::parse("backend:native,per_process_memory_fraction:0.5").unwrap();
    assert!((conf.per_process_memory_fraction - 0.5).abs() < 1e-12);
    let conf = AllocConf::parse("backend:cudaMallocAsync").unwrap();
    assert_eq!(conf.backend, Backend::CudaMallocAsync);
}

#[test]
fn divisions_by_size_class() {
    let table = |text: &str| {
        AllocConf::parse(&format!("roundup_power2_divisions:{text}"))
            .unwrap()
            .roundup_power2_divisions
    };
    assert_eq!(table("4"), [4; 16]);
    assert_eq!(table("[1:4,2:8]")[..4], [4, 8, 0, 0]);
    assert_eq!(table("[4:4,64:8]")[..8], [4, 4, 4, 0, 0, 0, 8, 0]);
    // `>` fills from the class after the last key.
    assert_eq!(table("[>:4]")[..3], [0, 4, 4]);
    assert_eq!(table("[8:2,>:4,1:1]")[..6], [1, 2, 2, 2, 4, 4]);
    assert_eq!(table("[1048576:4]"), [4; 16]);
}

#[test]
fn what_a_second_text_forgets() {
    let first = AllocConf::parse(
        "max_split_size_mb:64,large_segment_size_mb:30,roundup_power2_divisions:4,\
         max_non_split_rounding_mb:50,expandable_segments:True,garbage_collection_threshold:0.5",
    )
    .unwrap();
    let second = first.reparse("").unwrap();
    assert_eq!(second.large_segment_bytes, 30 * MIB);
    assert!(second.expandable_segments);
    assert_eq!(second.max_split_bytes, None);
    assert_eq!(second.max_non_split_rounding_bytes, 30 * MIB);
    assert_eq!(second.roundup_power2_divisions, [0; 16]);
    assert!(second.garbage_collection_threshold.abs() < f64::EPSILON);
}

#[test]
fn loose_where_pytorch_is() {
    let split = |text: &str| AllocConf::parse(text).unwrap().max_split_bytes;
    assert_eq!(split("max_split_size_mb,128"), Some(128 * MIB));
    assert_eq!(split("max_split_size_mb:+50"), Some(50 * MIB));
    assert_eq!(split("max_split_size_mb:50abc,"), Some(50 * MIB));
    assert_eq!(split("max_split_size_mb:-5"), Some(u64::MAX - MIB + 1));
    let conf = AllocConf::parse("garbage_collection_threshold:0x1p-1z").unwrap();
    assert!((conf.garbage_collection_threshold - 0.5).abs() < 1e-12);
}

#[test]
fn errors_name_what_is_wrong() {
    let unknown = |key: &str| AllocConfError::UnknownKey {
        key: key.to_owned(),
    };
    assert_eq!(error("foo:1"), unknown("foo"));
    assert_eq!(error(",max_split_size_mb:128"), unknown(","));
    assert_eq!(
        error("expandable_segments:true"),
        AllocConfError::NotBool {
            index: 2,
            token: "true".to_owned()
        }
    );
    assert_eq!(
        error("max_split_size_mb"),
        AllocConfError::Ends { index: 2 }
    );
    assert_eq!(
        error("max_split_size_mb:10"),
        AllocConfError::TooSmall {
            key: "max_split_size_mb",
            minimum_mib: 20
        }
    );
    // The large segment size counts wherever it stands.
    assert_eq!(
        error("max_split_size_mb:20,large_segment_size_mb:64"),
        AllocConfError::TooSmall {
            key: "max_split_size_mb",
            minimum_mib: 64
        }
    );
    assert!(matches!(
        error("max_split_size_mb:x"),
        AllocConfError::NotNumber { .. }
    ));
    assert!(matches!(
        error("max_split_size_mb:99999999999999999999"),
        AllocConfError::OutOfRange { .. }
    ));
    assert_eq!(
        error("large_segment_size_mb:10"),
        AllocConfError::LargeSegmentTooSmall
    );
    assert_eq!(
        error("garbage_collection_threshold:nan"),
        AllocConfError::Threshold
    );
    assert!(matches!(
        error("garbage_collection_threshold:1e-400"),
        AllocConfError::OutOfRange { .. }
    ));
    assert_eq!(
        error("roundup_power2_divisions:0"),
        AllocConfError::Division
    );
    assert_eq!(
        error("roundup_power2_divisions:[1:3]"),
        AllocConfError::ListDivision
    );
    assert_eq!(
        error("roundup_power2_divisions:[3:4]"),
        AllocConfError::Interval
    );
    assert_eq!(
        error("roundup_power2_divisions:["),
        AllocConfError::NoClosingBracket
    );
    assert_eq!(
        error("per_process_memory_fraction:1.5"),
        AllocConfError::Fraction
    );
    assert_eq!(error("backend:foo"), AllocConfError::UnknownBackend);
    assert_eq!(
        error("pinned_num_register_threads:3"),
        AllocConfError::RegisterThreads(3)
    );
    assert_eq!(
        error("pinned_num_register_threads:256"),
        AllocConfError::TooManyRegisterThreads(256)
    );
}
