use super::*;
use crate::checkpoint::{
    CheckpointParts, Format, Role, RoleSource, Storage, StorageData, StorageId, StorageParts,
    TensorParts,
};
use crate::tensor::Dims;

/// A checkpoint of float32 tensors with these names and sizes, each with a storage of its own.
fn checkpoint(tensors: &[(&str, u64)]) -> Checkpoint {
    let bytes: u64 = tensors.iter().map(|(_, size)| size * 4).sum();
    let mut parts = CheckpointParts::new(Format::TorchZip, bytes + 100);
    for (index, (name, size)) in tensors.iter().enumerate() {
        parts.storages.push(Storage::new(StorageParts {
            dtype: Some(DType::Float32),
            bytes: size * 4,
            file_bytes: size * 4,
            device: None,
            member: format!("data/{index}").into(),
            data: StorageData::Absent,
            crc32: None,
        }));
        let tensor = TensorParts {
            name: (*name).into(),
            role: Role::Parameter,
            role_source: RoleSource::Inferred,
            dtype: Some(DType::Float32),
            shape: Some(Dims::from_slice(&[*size])),
            strides: Dims::from_slice(&[1]),
            storage: Some(StorageId::new(u32::try_from(index).unwrap())),
            storage_offset: 0,
            requires_grad: None,
            layout: Layout::Strided,
        };
        parts
            .tensors
            .push(Tensor::new(tensor, Some(size * 4)).unwrap());
    }
    Checkpoint::new(parts).unwrap()
}

fn lines(view: &View) -> Vec<String> {
    view.rows
        .iter()
        .map(|row| {
            format!(
                "{} {} x{} {:?}",
                row.level,
                row.path,
                row.repeats,
                row.bytes.unwrap()
            )
        })
        .collect()
}

/// Children of every shown module add up to it, and the top level to the whole.
fn assert_adds_up(view: &View, total: u64) {
    for level in 0..4 {
        for (index, row) in view.rows.iter().enumerate() {
            let below = view.rows[index + 1..]
                .iter()
                .take_while(|other| other.level > row.level);
            let children: Vec<&Row> = below.filter(|other| other.level == row.level + 1).collect();
            if row.level == level && !children.is_empty() {
                let sum: u64 = children.iter().map(|child| child.bytes.unwrap()).sum();
                assert_eq!(Some(sum), row.bytes, "{}", row.path);
            }
        }
    }
    let top: u64 = view
        .rows
        .iter()
        .filter(|row| row.level == 0)
        .map(|row| row.bytes.unwrap())
        .sum();
    assert_eq!(top, total);
}

const LAYERS: [(&str, u64); 8] = [
    ("model.layers.0.w", 5),
    ("model.layers.0.b", 1),
    ("model.layers.1.w", 5),
    ("model.layers.1.b", 1),
    ("model.layers.10.w", 5),
    ("model.layers.10.b", 1),
    ("model.layers.2.w", 6),
    ("head", 2),
];

#[test]
fn equal_layers_collapse_and_chains_join() {
    let view = View::new(&checkpoint(&LAYERS), &ViewOptions::default());
    assert_eq!(
        lines(&view),
        [
            "0 model.layers x1 96",
            "1 model.layers.{0..1,10} x3 72",
            "2 model.layers.{0..1,10}.w x3 60",
            "2 model.layers.{0..1,10}.b x3 12",
            "1 model.layers.2.w x1 24",
            "0 head x1 8",
        ]
    );
    assert_adds_up(&view, 104);
}

#[test]
fn all_shows_every_tensor() {
    let options = ViewOptions {
        all: true,
        ..ViewOptions::default()
    };
    let view = View::new(&checkpoint(&LAYERS), &options);
    assert_eq!(
        view.rows
            .iter()
            .filter(|row| row.kind == RowKind::Tensor)
            .count(),
        8
    );
    assert_adds_up(&view, 104);
}

#[test]
fn a_list_is_sorted_and_cut() {
    let options = ViewOptions {
        top: Some(2),
        ..ViewOptions::default()
    };
    let view = View::new(&checkpoint(&LAYERS), &options);
    assert_eq!(
        lines(&view),
        [
            "3 model.layers.{0..1,10}.w x3 60",
            "3 model.layers.2.w x1 24"
        ]
    );
    assert_eq!(view.hidden_rows, 2);
    let options = ViewOptions {
        order: Some(Order::Name),
        all: true,
        filter: Some(Regex::new("b$").unwrap()),
        ..ViewOptions::default()
    };
    let view = View::new(&checkpoint(&LAYERS), &options);
    assert_eq!(view.filtered, Some((3, 8)));
    assert_eq!(view.rows[2].path, "model.layers.10.b");
}

#[test]
fn a_flat_checkpoint_of_many_tensors_is_cut() {
    let names: Vec<String> = (0..500).map(|n| format!("t{n}x")).collect();
    let tensors: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let view = View::new(&checkpoint(&tensors), &ViewOptions::default());
    assert_eq!(
        (view.rows.len(), view.hidden_rows),
        (TREE_ROWS, 500 - TREE_ROWS)
    );
    let names: Vec<String> = (0..500).map(|n| format!("t{n}")).collect();
    let tensors: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let view = View::new(&checkpoint(&tensors), &ViewOptions::default());
    assert_eq!(lines(&view), ["0 t{0..499} x500 2000"]);
}

#[test]
fn the_same_name_twice_and_hostile_names() {
    let deep = "a.".repeat(100_000);
    let names = [
        ("w", 1),
        ("w", 2),
        ("w.x", 3),
        (deep.as_str(), 4),
        ("", 5),
        ("..", 6),
    ];
    let checkpoint = checkpoint(&names);
    for all in [false, true] {
        let options = ViewOptions {
            all,
            depth: Some(1),
            ..ViewOptions::default()
        };
        assert_adds_up(&View::new(&checkpoint, &options), 84);
    }
}

#[test]
fn cast_sizes() {
    let checkpoint = checkpoint(&LAYERS);
    assert_eq!(
        CastSizes::of(&checkpoint, DType::BFloat16).storage_bytes,
        52
    );
    let options = ViewOptions {
        cast: Some(DType::Int8),
        ..ViewOptions::default()
    };
    let view = View::new(&checkpoint, &options);
    assert_eq!(view.rows[0].cast_bytes, Some(24));
}
