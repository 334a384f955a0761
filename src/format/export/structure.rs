//! The outputs of a program as the model returned them: values and types as TorchScript writes them, in the tuples,
//! lists and dictionaries that the file keeps as a pytree in JSON.

use super::script::quoted;

/// The type of several values.
pub(super) fn tuple_type(kinds: &[&str]) -> String {
    match kinds {
        [] => "NoneType".to_owned(),
        [one] => (*one).to_owned(),
        several => format!("Tuple[{}]", several.join(", ")),
    }
}

/// Several values as one.
pub(super) fn tuple(values: &[String]) -> String {
    match values {
        [] => "None".to_owned(),
        [one] => one.clone(),
        several => format!("({})", several.join(", ")),
    }
}

/// The outputs as the model returned them, from the pytree that the file keeps as JSON: value and type. Where the tree
/// cannot be rebuilt, a flat tuple.
pub(super) fn structure(spec: &str, flat: &[(String, &str)]) -> (String, String) {
    let tree = serde_json::from_str::<serde_json::Value>(spec).ok();
    let mut leaves = flat.iter();
    let built = tree
        .as_ref()
        .and_then(|tree| node(tree.get(1)?, &mut leaves));
    match built {
        Some(built) if leaves.next().is_none() => built,
        _ => {
            let (values, kinds): (Vec<String>, Vec<&str>) = flat
                .iter()
                .map(|(value, kind)| (value.clone(), *kind))
                .unzip();
            (tuple(&values), tuple_type(&kinds))
        }
    }
}

fn node<'f>(
    tree: &serde_json::Value,
    leaves: &mut impl Iterator<Item = &'f (String, &'f str)>,
) -> Option<(String, String)> {
    let Some(kind) = tree.get("type")?.as_str() else {
        let (value, kind) = leaves.next()?;
        return Some((value.clone(), (*kind).to_owned()));
    };
    let children = tree.get("children_spec")?.as_array()?;
    let parts: Option<Vec<(String, String)>> =
        children.iter().map(|child| node(child, leaves)).collect();
    let parts = parts?;
    let tensors = !parts.is_empty() && parts.iter().all(|(_, kind)| kind == "Tensor");
    let values: Vec<&str> = parts.iter().map(|(value, _)| value.as_str()).collect();
    let kinds: Vec<&str> = parts.iter().map(|(_, kind)| kind.as_str()).collect();
    let keys = tree.get("context").and_then(serde_json::Value::as_str);
    let keys = keys.and_then(|context| serde_json::from_str::<Vec<String>>(context).ok());
    if tensors
        && let Some(keys) = keys.filter(|keys| keys.len() == parts.len())
        && kind.to_ascii_lowercase().contains("dict")
    {
        let pairs: Vec<String> = keys
            .iter()
            .zip(&values)
            .map(|(key, value)| format!("{}: {value}", quoted(key)))
            .collect();
        return Some((
            format!("{{{}}}", pairs.join(", ")),
            "Dict[str, Tensor]".to_owned(),
        ));
    }
    if tensors && kind == "builtins.list" {
        return Some((
            format!("[{}]", values.join(", ")),
            "List[Tensor]".to_owned(),
        ));
    }
    match parts.as_slice() {
        [] => Some(("None".to_owned(), "NoneType".to_owned())),
        [_] => Some((
            format!("({},)", values.concat()),
            format!("Tuple[{}]", kinds.concat()),
        )),
        _ => Some((
            format!("({})", values.join(", ")),
            format!("Tuple[{}]", kinds.join(", ")),
        )),
    }
}
