//! Reports on the published fabric for `ibsmctl`, as text or JSON.

use ib_mad::types::Guid;
use sa_proto::proto::admin::inspect_request::What;
use sa_proto::proto::admin::{InspectRequest, Listing, SwitchBalance};
use serde::Serialize;
use tonic::Status;

use crate::inspect::{self, FabricView, FindError};

/// The report that is requested.
pub(super) fn inspection(fabric: &FabricView, request: InspectRequest) -> Result<String, Status> {
    let form = Form { is_json: request.json };
    let switch = |name: &str| -> Result<Option<Guid>, Status> {
        let switch = node(name, fabric)?;
        switch.map(|guid| inspect::switch(guid, fabric).map_err(unknown)).transpose()
    };
    match request.what {
        Some(What::Lid(lid)) => {
            let report = u16::try_from(lid).ok().and_then(|lid| inspect::query_lid(lid, fabric));
            let report = report.map(|report| form.write(&report));
            report.ok_or_else(|| Status::not_found(format!("no port has LID {lid}")))
        }
        Some(What::PortStatus(kind)) => {
            let kind = Some(&kind[..]).filter(|kind| !kind.is_empty());
            let report = inspect::port_status(kind, fabric);
            report.map(|report| form.write(&report)).ok_or_else(no_kind)
        }
        Some(What::SwitchBalance(SwitchBalance { node, verbose })) => {
            let reports = inspect::of_switches(verbose, switch(&node)?, fabric);
            Ok(form.write_all(&reports.unwrap_or_default()))
        }
        Some(What::LidBalance(node)) => {
            let reports = inspect::of_lids(switch(&node)?, fabric);
            Ok(form.write_all(&reports.unwrap_or_default()))
        }
        Some(What::Nodes(Listing { node: name, kind })) => {
            let nodes = inspect::nodes(node(&name, fabric)?, &kind, fabric);
            nodes.map(|nodes| form.write(&nodes)).ok_or_else(no_kind)
        }
        Some(What::Ports(Listing { node: name, kind })) => {
            let ports = inspect::ports(node(&name, fabric)?, &kind, fabric);
            ports.map(|ports| form.write(&ports)).ok_or_else(no_kind)
        }
        Some(What::Links(Listing { node: name, kind })) => {
            let links = inspect::links(node(&name, fabric)?, &kind, fabric);
            links.map(|links| form.write(&links)).ok_or_else(no_kind)
        }
        Some(What::VirtualPorts(Listing { node: name, kind })) => {
            let ports = inspect::virtual_ports(node(&name, fabric)?, &kind, fabric);
            ports.map(|ports| form.write(&ports)).ok_or_else(no_kind)
        }
        None => Err(Status::invalid_argument("nothing is requested")),
    }
}

/// The form of a report.
struct Form {
    is_json: bool,
}

impl Form {
    fn write(&self, report: &(impl ToString + Serialize)) -> String {
        if self.is_json { json(report) } else { report.to_string() }
    }

    fn write_all(&self, reports: &[impl ToString + Serialize]) -> String {
        if self.is_json { json(reports) } else { reports.iter().map(ToString::to_string).collect() }
    }
}

fn json(report: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(report).expect("text and numbers can be written")
}

/// GUID of the node that `name` stands for; nothing if it is empty.
fn node(name: &str, fabric: &FabricView) -> Result<Option<Guid>, Status> {
    if name.is_empty() {
        return Ok(None);
    }
    inspect::find(name, fabric).map(|node| Some(node.guid)).map_err(unknown)
}

pub(super) fn unknown(error: FindError) -> Status {
    Status::not_found(error.to_string())
}

fn no_kind() -> Status {
    Status::invalid_argument("a type of nodes is ca, switch or router")
}
