//! `*.index.json`: what tensor is in what shard.
//!
//! | key | what it is |
//! |---|---|
//! | `weight_map` | an object: name of a tensor → name of a file in the folder of the index |
//! | `metadata.total_size` | bytes of all tensors; left out by some writers, a float or text by others |
//!
//! Nothing else in it is read.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};

use super::super::error::FormatError;
use super::super::pickle::cut;
use crate::limits;

/// What an index says.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Index {
    #[serde(default)]
    metadata: Metadata,
    weight_map: WeightMap,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    total_size: Option<serde_json::Value>,
}

/// Names in the order of the index, with the place of their shard.
#[derive(Debug, Default)]
struct WeightMap {
    keys: Vec<(String, usize)>,
    shards: Vec<String>,
}

impl Index {
    /// Reads the text of an index.
    pub(crate) fn parse(data: &[u8]) -> Result<Index, FormatError> {
        if data.len() as u64 > limits::INDEX_BYTES {
            return Err(FormatError::Limit {
                what: "the bytes of the index".to_owned(),
                limit: limits::INDEX_BYTES,
            });
        }
        let data = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data);
        serde_json::from_slice(data).map_err(|error| FormatError::Structure {
            part: "the index".to_owned(),
            expected: "JSON with a `weight_map` of names".to_owned(),
            found: cut(&error.to_string()),
        })
    }

    /// The names of the shards, in the order of their names.
    pub(crate) fn shards(&self) -> Vec<&str> {
        let mut shards: Vec<&str> = self.weight_map.shards.iter().map(String::as_str).collect();
        shards.sort_unstable();
        shards
    }

    /// Every name with its shard, in the order of the index.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, &str)> {
        let shards = &self.weight_map.shards;
        let keys = self.weight_map.keys.iter();
        keys.filter_map(|(name, shard)| Some((name.as_str(), shards.get(*shard)?.as_str())))
    }

    /// The bytes of all tensors, where the index says so as a whole number.
    pub(crate) fn total_bytes(&self) -> Option<u64> {
        self.metadata.total_size.as_ref()?.as_u64()
    }
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names by tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut result = WeightMap::default();
                let mut seen = HashSet::new();
                let mut places: HashMap<String, usize> = HashMap::new();
                while let Some((name, shard)) = map.next_entry::<String, String>()? {
                    if !seen.insert(name.clone()) {
                        let name = cut(&name);
                        return Err(A::Error::custom(format!("`{name}` occurs twice")));
                    }
                    let next = result.shards.len();
                    let place = *places.entry(shard).or_insert_with_key(|shard| {
                        result.shards.push(shard.clone());
                        next
                    });
                    if result.shards.len() > limits::SHARDS {
                        let limit = limits::SHARDS;
                        return Err(A::Error::custom(format!("more than {limit} shards")));
                    }
                    result.keys.push((name, place));
                }
                Ok(result)
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Whether text is an index, by its beginning.
pub(crate) fn is_index(data: &[u8]) -> bool {
    /// How far in the map may start: what comes before is the metadata.
    const HEAD_BYTES: usize = 1 << 16;
    const KEY: &[u8] = b"\"weight_map\"";
    let head = data.get(..data.len().min(HEAD_BYTES)).unwrap_or(data);
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    head.trim_ascii_start().starts_with(b"{") && head.windows(KEY.len()).any(|part| part == KEY)
}

/// Reads an index and no shard, for fuzzing.
pub fn check_index(data: &[u8]) -> Result<usize, FormatError> {
    let index = Index::parse(data)?;
    Ok(index.keys().count().saturating_add(index.shards().len()))
}
