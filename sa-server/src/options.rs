//! What the command line says.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::redirect::Target;
use crate::replica::SmUrl;

/// Answers Subnet Administration queries from the snapshots that ibsm publishes
#[derive(Clone, Debug, Parser)]
#[command(name = "ibsa", version)]
pub struct Options {
    /// URL of an SM to subscribe to, such as http://127.0.0.1:7471; repeat for standby SMs
    #[arg(long = "sm", value_name = "URL", required = true)]
    pub sms: Vec<SmUrl>,

    /// Where clients' queries come from, besides the front door
    #[arg(long, value_enum)]
    pub transport: TransportKind,

    /// ibsim: node to attach to, by identifier or description
    #[arg(long, env = "SIM_HOST", value_name = "NODE")]
    pub node: Option<String>,

    /// ibsim: base of the server's socket names
    #[arg(long, env = "IBSIM_SOCKNAME", value_name = "NAME", default_value = "sim")]
    pub socket: String,

    /// UDP address for queries in envelopes, from a front door or from clients; port 0 takes a free one.
    /// Nothing is authenticated there: use an address that only trusted hosts reach
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))]
    pub listen: SocketAddr,

    /// Address to serve /metrics and /healthz at; not served without it
    #[arg(long, value_name = "ADDR")]
    pub http: Option<SocketAddr>,

    /// Directory for the last snapshot, from which queries are answered at once after a restart
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,

    /// Threads that answer queries that arrive by UDP
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,

    /// Name by which the SM's operator knows this responder [default: ibsa-PID]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Responder that ClassPortInfo tells clients to ask instead, as `LID[:QP[:P_KEY]]`; repeat to spread them
    #[arg(long = "redirect-to", value_name = "TARGET")]
    pub redirect_to: Vec<Target>,
}

/// Where queries come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// A node of a fabric that ibfabric or ibsim simulates.
    Ibsim,
    /// UDP only.
    Udp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        let options = Options::try_parse_from([
            "ibsa",
            "--sm",
            "http://127.0.0.1:1",
            "--sm",
            "http://127.0.0.1:2",
            "--transport",
            "udp",
        ]);
        assert_eq!(options.unwrap().sms.len(), 2);
    }
}
