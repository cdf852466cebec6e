//! Reports on the fabric: `ibsmctl nodes`, `ports`, `links` and `vports`, and words of OpenSM's
//! console: `querylid`, `portstatus`, `switchbalance`, `lidbalance` and `dump-conf`.

use clap::ValueEnum;
use sa_proto::proto::admin::inspect_request::What;
use sa_proto::proto::admin::{InspectRequest, Listing, SettingsRequest, SwitchBalance};
use serde_json::{Map, Value};

use super::{CtlError, Sm, to_json};
use sm_config::parse_number;

/// Options of `ibsmctl nodes`, `ports`, `links` and `vports`.
#[derive(Debug, clap::Args)]
pub struct ListOptions {
    /// List only this node, or what belongs to it: a name, the beginning of one, a GUID or a LID.
    node: Option<String>,
    /// List only nodes of this type, or what belongs to them.
    #[arg(short, long = "type", value_name = "TYPE")]
    kind: Option<NodeKind>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Options of `ibsmctl querylid`.
#[derive(Debug, clap::Args)]
pub struct LidOptions {
    /// A unicast LID, decimal or, with 0x, hexadecimal.
    #[arg(value_parser = lid)]
    lid: u16,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

fn lid(text: &str) -> Result<u16, String> {
    let lid = parse_number(text).and_then(|lid| u16::try_from(lid).ok());
    lid.ok_or_else(|| "a LID is a number of at most 0xffff, such as 17 or 0x11".to_owned())
}

/// Options of `ibsmctl portstatus`.
#[derive(Debug, clap::Args)]
pub struct PortStatusOptions {
    /// Type of the nodes whose ports are counted [default: all].
    kind: Option<NodeKind>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// A type of nodes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum NodeKind {
    /// Channel adapters.
    Ca,
    /// Switches.
    Switch,
    /// Routers.
    Router,
}

/// Options of `ibsmctl switchbalance`.
#[derive(Debug, clap::Args)]
pub struct SwitchBalanceOptions {
    /// A switch, by name, the beginning of one, GUID or LID [default: all].
    switch: Option<String>,
    /// List balanced switches, too.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Options of `ibsmctl lidbalance`.
#[derive(Debug, clap::Args)]
pub struct LidBalanceOptions {
    /// A switch, by name, the beginning of one, GUID or LID [default: all].
    switch: Option<String>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

impl NodeKind {
    fn word(self) -> &'static str {
        match self {
            Self::Ca => "ca",
            Self::Switch => "switch",
            Self::Router => "router",
        }
    }
}

impl ListOptions {
    fn listing(&self) -> Listing {
        let kind = self.kind.map_or("", NodeKind::word).to_owned();
        Listing { node: self.node.clone().unwrap_or_default(), kind }
    }
}

/// Nodes.
pub(super) async fn nodes(sm: &Sm, options: &ListOptions) -> Result<String, CtlError> {
    report(sm, What::Nodes(options.listing()), options.json, "").await
}

/// Ports.
pub(super) async fn ports(sm: &Sm, options: &ListOptions) -> Result<String, CtlError> {
    report(sm, What::Ports(options.listing()), options.json, "").await
}

/// Links.
pub(super) async fn links(sm: &Sm, options: &ListOptions) -> Result<String, CtlError> {
    report(sm, What::Links(options.listing()), options.json, "").await
}

/// Virtual ports.
pub(super) async fn virtual_ports(sm: &Sm, options: &ListOptions) -> Result<String, CtlError> {
    report(sm, What::VirtualPorts(options.listing()), options.json, "").await
}

/// The port that has a LID.
pub(super) async fn query_lid(sm: &Sm, options: &LidOptions) -> Result<String, CtlError> {
    report(sm, What::Lid(options.lid.into()), options.json, "").await
}

/// States, widths and speeds of ports.
pub(super) async fn port_status(sm: &Sm, options: &PortStatusOptions) -> Result<String, CtlError> {
    let kind = options.kind.map_or("", NodeKind::word);
    report(sm, What::PortStatus(kind.to_owned()), options.json, "").await
}

/// How evenly switches use their links to others.
pub(super) async fn switch_balance(
    sm: &Sm,
    options: &SwitchBalanceOptions,
) -> Result<String, CtlError> {
    let SwitchBalanceOptions { switch, verbose, json } = options;
    let node = switch.clone().unwrap_or_default();
    let what = What::SwitchBalance(SwitchBalance { node, verbose: *verbose });
    report(sm, what, *json, "no switch is unbalanced\n").await
}

/// Ports whose LIDs switches forward unevenly.
pub(super) async fn lid_balance(sm: &Sm, options: &LidBalanceOptions) -> Result<String, CtlError> {
    let what = What::LidBalance(options.switch.clone().unwrap_or_default());
    report(sm, what, options.json, "no port is unbalanced\n").await
}

/// A report, or `empty` in place of no text.
async fn report(sm: &Sm, what: What, json: bool, empty: &str) -> Result<String, CtlError> {
    let request = InspectRequest { what: Some(what), json };
    let answer = sm.connect().await?.inspect(request).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut text = String::new();
    while let Some(piece) = stream.message().await.map_err(|status| sm.refused(&status))? {
        text.push_str(&piece.text);
    }
    if json {
        let value: Value =
            serde_json::from_str(&text).map_err(|failure| CtlError::Unread(failure.to_string()))?;
        return Ok(to_json(&value));
    }
    Ok(if text.is_empty() { empty.to_owned() } else { text })
}

/// The settings in force, in opensm.conf's syntax or as JSON.
pub(super) async fn dump_conf(sm: &Sm, json: bool) -> Result<String, CtlError> {
    let text = settings(sm).await?;
    Ok(if json { to_json(&by_key(&text)) } else { text })
}

/// The value of each key, as text: `null` for none, a list for a key of several lines. Settings of
/// ours that are at their defaults are comments, without a blank behind the `#`.
fn by_key(settings: &str) -> Map<String, Value> {
    let mut keys = Map::new();
    for line in settings.lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        let Some((key, value)) = line.split_once(' ').filter(|(key, _)| !key.is_empty()) else {
            continue;
        };
        let value = match value {
            "(null)" => Value::Null,
            value => value.into(),
        };
        match keys.get_mut(key) {
            None => drop(keys.insert(key.to_owned(), value)),
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    keys
}

/// The settings in force, in opensm.conf's syntax.
pub(super) async fn settings(sm: &Sm) -> Result<String, CtlError> {
    let answer = sm.connect().await?.get_settings(SettingsRequest {}).await;
    Ok(answer.map_err(|status| sm.refused(&status))?.into_inner().text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_config::Settings;

    #[test]
    fn settings_are_json_by_their_keys() {
        let settings = Settings::default();
        let keys = by_key(&settings.render());
        let names: Vec<_> = Settings::keys().iter().map(|key| key.name).collect();
        assert!(keys.keys().all(|key| names.contains(&&key[..])), "{keys:?}");
        assert_eq!(keys["sm_priority"], "0");
        assert_eq!(keys["routing_engine"], Value::Null);
        let twice = by_key("# A key.\na 1\na 2\na 3\n#b x y\n\n");
        assert_eq!(Value::Object(twice), serde_json::json!({"a": ["1", "2", "3"], "b": "x y"}));
    }

    /// Regression: `ibsmctl querylid 0x1` was refused.
    #[test]
    fn a_lid_is_decimal_or_hexadecimal() {
        assert_eq!([lid("17"), lid("0x11"), lid("0xC000")], [Ok(17), Ok(17), Ok(0xC000)]);
        for text in ["", "x", "0x10000", "-1", "1 "] {
            assert!(lid(text).is_err(), "{text}");
        }
    }
}
