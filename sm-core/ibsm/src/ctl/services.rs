//! `ibsmctl services`: lists the services that ports registered.

use std::fmt::Write as _;

use sa_proto::proto::admin::{Service, ServicesRequest};
use serde::Serialize;

use super::port::{self, PortJson};
use super::{CtlError, Sm, to_json};

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Requests the services and formats them.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let answer = sm.connect().await?.list_services(ServicesRequest {}).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut services = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| sm.refused(&status))? {
        services.extend(message.services);
    }
    Ok(if options.json {
        to_json(&services.iter().map(ServiceJson::of).collect::<Vec<_>>())
    } else {
        text(&services)
    })
}

fn text(services: &[Service]) -> String {
    if services.is_empty() {
        return "no services\n".to_owned();
    }
    let mut text = String::new();
    for service in services {
        let left = service.left_s.map_or("permanent".to_owned(), |s| format!("for {s} s"));
        let _ = writeln!(
            text,
            "{:#018x}  '{}'  {}  {}  P_Key {:#06x}, {left}{}",
            service.service_id,
            service.name.escape_default(),
            port::name(service.port.as_ref()),
            port::gid(service.port.as_ref()),
            service.pkey,
            if service.has_key { ", with a key" } else { "" },
        );
    }
    text
}

/// A service as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct ServiceJson<'a> {
    service_id: String,
    name: &'a str,
    #[serde(flatten)]
    port: PortJson<'a>,
    pkey: String,
    left_s: Option<u64>,
    has_key: bool,
}

impl<'a> ServiceJson<'a> {
    fn of(service: &'a Service) -> Self {
        Self {
            service_id: format!("{:#018x}", service.service_id),
            name: &service.name,
            port: PortJson::of(service.port.as_ref()),
            pkey: format!("{:#06x}", service.pkey),
            left_s: service.left_s,
            has_key: service.has_key,
        }
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::proto::admin::Port;

    use super::*;

    #[test]
    fn services_are_shown_with_their_ports_and_remaining_leases() {
        let mut gid = vec![0; 16];
        (gid[0], gid[1], gid[15]) = (0xFE, 0x80, 1);
        let service = Service {
            service_id: 0x10,
            port: Some(Port { gid, node: "host-1".into(), number: 1 }),
            pkey: 0xFFFF,
            name: "DAPL\n".into(),
            left_s: Some(90),
            has_key: true,
        };
        let lasting = Service { left_s: None, has_key: false, port: None, ..service.clone() };
        assert_eq!(
            text(&[service, lasting]),
            "0x0000000000000010  'DAPL\\n'  host-1/P1  fe80::1  P_Key 0xffff, for 90 s, with a \
             key\n\
             0x0000000000000010  'DAPL\\n'  not in the fabric  no GID  P_Key 0xffff, permanent\n"
        );
        assert_eq!(text(&[]), "no services\n");
    }
}
