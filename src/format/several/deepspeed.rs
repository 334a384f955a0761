//! Folders that DeepSpeed saves: what each process kept, in files that `torch.save` wrote.
//!
//! | file | what it is |
//! |---|---|
//! | `mp_rank_<m>_model_states.pt` | the weights of model-parallel rank `m`, with what training needs besides |
//! | `zero_pp_rank_<d>_mp_rank_<m>_model_states.pt` | with ZeRO stage 3: what data-parallel rank `d` has of them |
//! | `[bf16_]zero_pp_rank_<d>_mp_rank_<m>_optim_states.pt` | data-parallel rank `d`'s part of the optimizer's state |
//! | `layer_<l>-model_<m>-model_states.pt` | a layer of a pipeline |
//! | `[layer_<l>_]expert_<e>_mp_rank_<m>_model_states.pt`, `expp_rank_<e>_mp_rank_<m>_optim_states.pt` | experts |
//! | `latest` | one folder up: the name of the newest folder |
//!
//! All of them are one checkpoint. Names are told apart by the file they are in, without its ending:
//! `mp_rank_00_model_states.module.0.weight`. What ZeRO cut into flat pieces is listed as those pieces: only DeepSpeed's
//! own code knows how to put them together. (DeepSpeed's documentation, "Model Checkpointing"; file names as in its
//! `zero_to_fp32.py`.)

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::super::error::FormatError;
use super::super::pickle::cut;
use super::super::torch::archive::{Kind, TorchArchive};
use super::super::torch::rows::push_finding;
use super::folder::Folder;
use super::in_file;
use super::sharded::{MISSING_SHARD, Model, Part};
use crate::checkpoint::{Checkpoint, FileRanks, Finding, Format, ObjectKind, Severity};
use crate::limits;
use crate::source::Source;

/// What the name of a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kept {
    /// Weights of a model-parallel rank.
    Model { mp: u64 },
    /// A data-parallel rank's part of them.
    ModelPart { mp: u64, dp: u64 },
    /// A layer of a pipeline.
    Layer { layer: u64, mp: u64 },
    /// An expert.
    Expert { expert: u64, mp: u64 },
    /// A data-parallel rank's part of the optimizer's state.
    Optimizer { mp: u64, dp: u64 },
    /// The optimizer's state of an expert.
    ExpertOptimizer { expert: u64, mp: u64 },
}

impl Kept {
    fn of(name: &str) -> Option<Kept> {
        let stem = name.strip_suffix(".pt")?;
        if let Some(stem) = stem.strip_suffix("_optim_states") {
            let stem = ["bf16_", "fp16_"]
                .iter()
                .find_map(|kind| stem.strip_prefix(kind))
                .unwrap_or(stem);
            let (own, mp) = split(stem)?;
            return match (number(own, "zero_pp_rank_"), number(own, "expp_rank_")) {
                (Some(dp), _) => Some(Kept::Optimizer { mp, dp }),
                (None, Some(expert)) => Some(Kept::ExpertOptimizer { expert, mp }),
                (None, None) => None,
            };
        }
        if let Some(stem) = stem.strip_suffix("-model_states") {
            let (layer, model) = stem.split_once('-')?;
            return Some(Kept::Layer {
                layer: number(layer, "layer_")?,
                mp: number(model, "model_")?,
            });
        }
        let stem = stem.strip_suffix("_model_states")?;
        if let Some(mp) = number(stem, "mp_rank_") {
            return Some(Kept::Model { mp });
        }
        let (own, mp) = split(stem)?;
        if let Some(dp) = number(own, "zero_pp_rank_") {
            return Some(Kept::ModelPart { mp, dp });
        }
        let (_, expert) = own.rsplit_once("expert_")?;
        let expert = expert.parse().ok()?;
        Some(Kept::Expert { expert, mp })
    }

    fn ranks(self) -> FileRanks {
        let of = |model: u64, data: Option<u64>, layer: Option<u64>| FileRanks {
            rank: None,
            model_parallel: Some(model),
            data_parallel: data,
            layer,
        };
        match self {
            Kept::Model { mp } | Kept::Expert { mp, .. } | Kept::ExpertOptimizer { mp, .. } => {
                of(mp, None, None)
            }
            Kept::ModelPart { mp, dp } | Kept::Optimizer { mp, dp } => of(mp, Some(dp), None),
            Kept::Layer { layer, mp } => of(mp, None, Some(layer)),
        }
    }
}

/// `<own>_mp_rank_<m>` in two.
fn split(stem: &str) -> Option<(&str, u64)> {
    let (own, mp) = stem.split_once("_mp_rank_")?;
    Some((own, mp.parse().ok()?))
}

fn number(text: &str, prefix: &str) -> Option<u64> {
    text.strip_prefix(prefix)?.parse().ok()
}

/// The folder that DeepSpeed saved which `path` is, or of which `latest` in it says the name.
pub(crate) fn folder_of(path: &Path) -> Option<Result<PathBuf, FormatError>> {
    let folder = Folder::open(path).ok()?;
    let (names, _) = folder.names().ok()?;
    if names.iter().any(|name| Kept::of(name).is_some()) {
        return Some(Ok(path.to_owned()));
    }
    let tag = latest(path)?;
    match folder.file(&tag) {
        Ok(Some(below)) if below.is_dir() => {
            let below = path.join(&tag);
            let inside = Folder::open(&below).and_then(|folder| folder.names());
            let ours = inside.is_ok_and(|(names, _)| names.iter().any(|n| Kept::of(n).is_some()));
            ours.then_some(Ok(below))
        }
        Ok(_) => Some(Err(FormatError::Structure {
            part: "the file `latest`, which names the newest checkpoint".to_owned(),
            expected: "a folder beside it".to_owned(),
            found: format!("no folder `{}`", cut(&tag)),
        })),
        Err(error) => Some(Err(error)),
    }
}

/// What `latest` says, where it is a line of text.
fn latest(folder: &Path) -> Option<String> {
    let source = Source::open(&folder.join("latest")).ok()?;
    if source.len() > limits::TAG_BYTES {
        return None;
    }
    let tag = std::str::from_utf8(source.bytes()).ok()?.trim();
    let line = !tag.is_empty() && !tag.chars().any(char::is_control);
    line.then(|| tag.to_owned())
}

/// Reads all files of the folder.
pub(crate) fn read(path: &Path) -> Result<Checkpoint, FormatError> {
    let folder = Folder::open(path)?;
    let mut files: Vec<(Kept, String)> = Vec::new();
    for name in folder.names()?.0 {
        if let Some(kept) = Kept::of(&name) {
            files.push((kept, name));
        }
    }
    files.sort();
    if files.len() > limits::SHARDS {
        return Err(too_many("the files of one checkpoint"));
    }
    let mut model = Model::new(Format::DeepSpeed);
    let mut said = Said::default();
    for (kept, name) in &files {
        let Some(real) = folder.file(name)? else {
            continue;
        };
        said.read(&real, *kept)
            .map_err(|error| in_file(name, error))?;
        model.add(Part {
            name,
            path: &real,
            ranks: kept.ranks(),
            prefix: Some(name.strip_suffix(".pt").unwrap_or(name)),
        })?;
    }
    let mut findings = Vec::new();
    said.tell(&mut findings);
    missing(&files, &said, &mut findings)?;
    older(path, &mut findings);
    model.set_about(
        ObjectKind::Checkpoint,
        said.version.map(|v| format!("DeepSpeed {v}")),
    );
    model.finish(findings)
}

/// What the files say of the whole.
#[derive(Debug, Default)]
struct Said {
    data_parallel: Option<u64>,
    model_parallel: Option<u64>,
    zero_stage: Option<u64>,
    steps: Option<u64>,
    version: Option<String>,
}

impl Said {
    /// Takes what one file says of all of them; the first that says something is believed.
    fn read(&mut self, path: &Path, kept: Kept) -> Result<(), FormatError> {
        let wanted = match kept {
            Kept::Model { .. } | Kept::ModelPart { .. } => self.data_parallel.is_none(),
            Kept::Optimizer { .. } => self.zero_stage.is_none(),
            _ => false,
        };
        let source = Source::open(path)?;
        if !wanted || !source.bytes().starts_with(b"PK\x03\x04") {
            return Ok(());
        }
        let archive = TorchArchive::open(source.bytes())?;
        if archive.kind() != Kind::Pickle {
            return Ok(());
        }
        archive.object(|pickle| {
            let root = pickle.root();
            let natural = |at, key: &str| {
                let value = pickle.get(at, key)?;
                pickle
                    .int(value)
                    .and_then(|value| u64::try_from(value).ok())
            };
            let set = |known: &mut Option<u64>, value: Option<u64>| *known = known.or(value);
            set(&mut self.data_parallel, natural(root, "dp_world_size"));
            set(&mut self.model_parallel, natural(root, "mp_world_size"));
            set(&mut self.steps, natural(root, "global_steps"));
            if let Some(optimizer) = pickle.get(root, "optimizer_state_dict") {
                set(&mut self.zero_stage, natural(optimizer, "zero_stage"));
            }
            if self.version.is_none() {
                let version = pickle.get(root, "ds_version").and_then(|v| pickle.text(v));
                self.version = version.map(|version| cut(&version));
            }
        })
    }

    fn tell(&self, findings: &mut Vec<Finding>) {
        let facts = [
            ("ZeRO stage", self.zero_stage),
            ("data-parallel ranks:", self.data_parallel),
            ("model-parallel ranks:", self.model_parallel),
            ("steps:", self.steps),
        ];
        let known = facts
            .iter()
            .filter_map(|(what, n)| Some(format!("{what} {}", (*n)?)));
        let known: Vec<String> = known.collect();
        if !known.is_empty() {
            let (info, message) = (Severity::Info, known.join(", "));
            push_finding(findings, info, "deepspeed", "", message);
        }
    }
}

fn too_many(what: &str) -> FormatError {
    FormatError::Limit {
        what: what.to_owned(),
        limit: limits::SHARDS as u64,
    }
}

/// Ranks of which there is no file, though there are of others.
fn missing(
    files: &[(Kept, String)],
    said: &Said,
    findings: &mut Vec<Finding>,
) -> Result<(), FormatError> {
    let there: BTreeSet<Kept> = files.iter().map(|(kept, _)| *kept).collect();
    let count = |said: Option<u64>, rank: fn(FileRanks) -> Option<u64>| {
        let seen = there.iter().filter_map(|kept| rank(kept.ranks())).max();
        let seen = seen.map_or(0, |rank| rank.saturating_add(1));
        seen.max(said.unwrap_or(0))
    };
    let data = count(said.data_parallel, |ranks| ranks.data_parallel);
    let model = count(said.model_parallel, |ranks| ranks.model_parallel);
    if data.saturating_mul(model) > limits::SHARDS as u64 {
        return Err(too_many("the ranks of one checkpoint"));
    }
    // The name of a file of another rank, with as many digits and the same beginning.
    let mut lost = |kept: Kept, like: &str| {
        let name = name_of(kept, like);
        let message = "files of other ranks are there, but not this one".to_owned();
        push_finding(findings, Severity::Error, MISSING_SHARD, &name, message);
    };
    let example = |wanted: fn(Kept) -> bool| files.iter().find(|(kept, _)| wanted(*kept));
    let mut layers: BTreeMap<u64, &str> = BTreeMap::new();
    for (kept, name) in files {
        if let Kept::Layer { layer, .. } = kept {
            layers.entry(*layer).or_insert(name);
        }
    }
    for mp in 0..model {
        let one = example(|kept| matches!(kept, Kept::Model { .. }));
        if let Some((_, like)) = one.filter(|_| !there.contains(&Kept::Model { mp })) {
            lost(Kept::Model { mp }, like);
        }
        for (layer, like) in &layers {
            let kept = Kept::Layer { layer: *layer, mp };
            if !there.contains(&kept) && mp < layer_ranks(&there) {
                lost(kept, like);
            }
        }
        for dp in 0..data {
            let one = example(|kept| matches!(kept, Kept::ModelPart { .. }));
            if let Some((_, like)) = one.filter(|_| !there.contains(&Kept::ModelPart { mp, dp })) {
                lost(Kept::ModelPart { mp, dp }, like);
            }
            let one = example(|kept| matches!(kept, Kept::Optimizer { .. }));
            if let Some((_, like)) = one.filter(|_| !there.contains(&Kept::Optimizer { mp, dp })) {
                lost(Kept::Optimizer { mp, dp }, like);
            }
        }
    }
    Ok(())
}

/// Model-parallel ranks that any layer has: of a pipeline, a layer's are fewer than all.
fn layer_ranks(there: &BTreeSet<Kept>) -> u64 {
    let ranks = there.iter().filter_map(|kept| match kept {
        Kept::Layer { mp, .. } => Some(mp.saturating_add(1)),
        _ => None,
    });
    ranks.max().unwrap_or(0)
}

/// What a file is called, by one of its kind: the same text with other numbers, as wide as those.
fn name_of(kept: Kept, like: &str) -> String {
    let numbers = match kept {
        Kept::Model { mp } => vec![mp],
        Kept::Layer { layer, mp } => vec![layer, mp],
        Kept::ModelPart { mp, dp } | Kept::Optimizer { mp, dp } => vec![dp, mp],
        Kept::Expert { expert, mp } | Kept::ExpertOptimizer { expert, mp } => vec![expert, mp],
    };
    let (prefix, mut rest) = match like.strip_prefix("bf16_").or(like.strip_prefix("fp16_")) {
        Some(rest) => (like.get(..5).unwrap_or(""), rest),
        None => ("", like),
    };
    let mut name = prefix.to_owned();
    for number in numbers {
        let Some(begin) = rest.find(|letter: char| letter.is_ascii_digit()) else {
            break;
        };
        let (text, from) = rest.split_at(begin);
        let width = from.bytes().take_while(u8::is_ascii_digit).count();
        name.push_str(text);
        // Writing to a String cannot fail.
        let _ = write!(name, "{number:0width$}");
        rest = from.get(width..).unwrap_or("");
    }
    name.push_str(rest);
    name
}

/// Says where the folder above names another one as the newest.
fn older(path: &Path, findings: &mut Vec<Finding>) {
    let Some((tag, own)) = path
        .parent()
        .and_then(latest)
        .zip(path.file_name().and_then(|name| name.to_str()))
    else {
        return;
    };
    if tag != own {
        let message = format!("`latest` in the folder above names `{}`", cut(&tag));
        push_finding(findings, Severity::Info, "not-latest", own, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_files_are_whose() {
        for (name, kept) in [
            ("mp_rank_00_model_states.pt", Some(Kept::Model { mp: 0 })),
            (
                "zero_pp_rank_3_mp_rank_01_model_states.pt",
                Some(Kept::ModelPart { mp: 1, dp: 3 }),
            ),
            (
                "bf16_zero_pp_rank_12_mp_rank_00_optim_states.pt",
                Some(Kept::Optimizer { mp: 0, dp: 12 }),
            ),
            (
                "layer_07-model_01-model_states.pt",
                Some(Kept::Layer { layer: 7, mp: 1 }),
            ),
            (
                "layer_2_expert_5_mp_rank_00_model_states.pt",
                Some(Kept::Expert { expert: 5, mp: 0 }),
            ),
            (
                "expp_rank_1_mp_rank_00_optim_states.pt",
                Some(Kept::ExpertOptimizer { expert: 1, mp: 0 }),
            ),
            ("mp_rank_x_model_states.pt", None),
            ("optimizer.pt", None),
            ("zero_pp_rank_0.pt", None),
            ("mp_rank_99999999999999999999_model_states.pt", None),
        ] {
            assert_eq!(Kept::of(name), kept, "{name}");
            if let Some(kept) = kept.filter(|kept| !matches!(kept, Kept::Expert { .. })) {
                assert_eq!(name_of(kept, name), name);
            }
        }
        let like = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";
        let other = name_of(Kept::Optimizer { mp: 3, dp: 17 }, like);
        assert_eq!(other, "bf16_zero_pp_rank_17_mp_rank_03_optim_states.pt");
    }
}
