//! The operator's names of nodes in questions to responders and in their answers. Responders know
//! only what nodes call themselves.

use std::collections::HashMap;

use sa_proto::snapshot::{FabricPlane, find};
use serde_json::Value;
use sm_config::NodeNames;

use crate::observe::description;

/// What a responder finds the port by that an operator calls `text`: for a node with this name, or
/// with a name of which this is all before a blank, its GUID; for `NAME/P2` what it calls itself.
/// Any other text stays.
pub(super) fn asked(text: String, names: &NodeNames, plane: &FabricPlane) -> String {
    let is_port = |port: &str| port.strip_prefix(['P', 'p']).unwrap_or(port).parse::<u8>().is_ok();
    let port = text.rfind('/').filter(|at| is_port(&text[at + 1..]));
    let (name, port) = text.split_at(port.unwrap_or(text.len()));
    let is_it = |given: &str| given == name;
    let is_host = |given: &str| {
        !name.is_empty() && given.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '))
    };
    let with = |is_it: &dyn Fn(&str) -> bool| {
        let mut named = names.iter().filter(|(_, given)| is_it(given));
        let (guid, _) = named.next()?;
        // One of several would be a guess.
        let node = find(&plane.nodes, *guid).filter(|_| named.next().is_none())?;
        Some(if port.is_empty() { guid.to_string() } else { description(node) + port })
    };
    with(&is_it).or_else(|| with(&is_host)).unwrap_or(text)
}

/// An explanation with the operator's names in place of what nodes call themselves.
pub(super) fn named(json: String, names: &NodeNames) -> String {
    if names.is_empty() {
        return json;
    }
    let Ok(mut explanation) = serde_json::from_str::<Value>(&json) else { return json };
    let mut given = HashMap::new();
    rename(&mut explanation, names, &mut given);
    for bound in ["mtu_bound_by", "rate_bound_by"] {
        for end in ["from", "to"] {
            if let Some(Value::String(text)) =
                explanation.get_mut(bound).and_then(|of| of.get_mut(end))
            {
                // A node and its port.
                let renamed = text
                    .rsplit_once("/P")
                    .and_then(|(node, port)| Some(format!("{}/P{port}", given.get(node)?)));
                *text = renamed.unwrap_or_else(|| std::mem::take(text));
            }
        }
    }
    if let Some(Value::String(text)) = explanation.get_mut("mtu_lowered_for")
        && let Some(name) = given.get(text)
    {
        text.clone_from(name);
    }
    explanation.to_string()
}

/// Renames each `node` beside a `node_guid`; `given` gets the new names by the old ones.
fn rename(value: &mut Value, names: &NodeNames, given: &mut HashMap<String, String>) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| rename(one, names, given)),
        Value::Object(fields) => {
            let guid = fields.get("node_guid").and_then(Value::as_str);
            let name = guid.and_then(|guid| names.get(&guid.parse().ok()?)).cloned();
            if let (Some(name), Some(Value::String(node))) = (name, fields.get_mut("node")) {
                given.insert(std::mem::replace(node, name.to_string()), name.to_string());
            }
            fields.values_mut().for_each(|one| rename(one, names, given));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ib_mad::types::Guid;
    use serde_json::json;

    use super::*;
    use crate::observe::problem::testing::plane;

    fn names() -> NodeNames {
        let of = |guid, name: &str| (Guid(guid), Arc::from(name));
        [of(1, "rack 7"), of(100, "alpha mlx5_0"), of(101, "beta mlx5_0"), of(102, "beta mlx5_1")]
            .into_iter()
            .collect()
    }

    /// Regression: `ibsmctl explain` and the page did not know the names of `node_name_map_name`.
    #[test]
    fn operators_names_are_understood_and_shown() {
        let plane = plane(&[(1, 9, 100, 1), (1, 10, 101, 1), (1, 11, 102, 1)], 0, 0);
        let asked = |text: &str| asked(text.to_owned(), &names(), &plane);
        assert_eq!(asked("rack 7"), Guid(1).to_string());
        assert_eq!(asked("alpha"), Guid(100).to_string());
        assert_eq!(asked("alpha mlx5_0/P1"), "n100/P1");
        for other in ["beta", "n100", "0x64", "rac", "", "/P1"] {
            assert_eq!(asked(other), other, "left to the responder");
        }
        let answer = json!({
            "source": { "node": "n100", "node_guid": Guid(100).to_string(), "port": 1 },
            "hops": [
                { "node": "n1", "node_guid": Guid(1).to_string() },
                { "node": "n8", "node_guid": Guid(8).to_string() },
            ],
            "rate_bound_by": { "from": "n1/P9", "to": "n8/P1" },
            "mtu_bound_by": null,
            "mtu_lowered_for": "n100",
        });
        let shown: Value = serde_json::from_str(&named(answer.to_string(), &names())).unwrap();
        assert_eq!(shown["source"]["node"], "alpha mlx5_0");
        assert_eq!(
            (&shown["hops"][0]["node"], &shown["hops"][1]["node"]),
            (&"rack 7".into(), &"n8".into())
        );
        assert_eq!(shown["rate_bound_by"], json!({ "from": "rack 7/P9", "to": "n8/P1" }));
        assert_eq!(shown["mtu_lowered_for"], "alpha mlx5_0");
        assert_eq!(named("{".into(), &names()), "{", "what is no document stays");
    }
}
