//! Reports on the fabric: `ibsmctl nodes`, `ports`, `links` and `vports`, and words of OpenSM's
//! console: `querylid`, `portstatus`, `switchbalance`, `lidbalance` and `dump-conf`.

use clap::ValueEnum;
use sa_proto::proto::admin::inspect_request::What;
use sa_proto::proto::admin::{InspectRequest, Listing, SettingsRequest, SwitchBalance};

use super::{CtlError, Sm, to_json};

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
    /// A unicast LID.
    lid: u16,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
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
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|failure| CtlError::Unread(failure.to_string()))?;
        return Ok(to_json(&value));
    }
    Ok(if text.is_empty() { empty.to_owned() } else { text })
}

/// The settings in force, in opensm.conf's syntax.
pub(super) async fn settings(sm: &Sm) -> Result<String, CtlError> {
    let answer = sm.connect().await?.get_settings(SettingsRequest {}).await;
    Ok(answer.map_err(|status| sm.refused(&status))?.into_inner().text)
}
