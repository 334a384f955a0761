//! Exported programs: `.pt2`, what `torch.export.save` writes.
//!
//! | record | what it is |
//! |---|---|
//! | `models/<model>.json` | the graph, its signature and its sizes ([`schema`]) |
//! | `data/weights/<model>_weights_config.json` | name → record and shape of every parameter and buffer |
//! | `data/constants/<model>_constants_config.json` | the same for other tensors |
//! | `data/weights/weight_<n>`, `data/constants/tensor_<n>` | one storage; one that is pickled is a `torch.save` file |
//! | `data/sample_inputs/<model>.pt` | `(args, kwargs)`, a `torch.save` file |
//! | `data/aotinductor/<model>/*` | a compiled model |
//!
//! Torch 2.8 kept weights and constants as one `torch.save` file each, `data/weights/<model>.pt`. Before that the
//! records lay outside any folder: `serialized_exported_program.json`, `serialized_state_dict.pt`,
//! `serialized_constants.pt`, `serialized_example_inputs.pt`; the earliest named all of them `.json`.

mod inputs;
mod program;
mod read;
mod records;
mod schema;
mod script;
mod structure;

pub(crate) use inputs::sample_inputs;
pub(crate) use read::read;
pub(crate) use script::torchscript;
