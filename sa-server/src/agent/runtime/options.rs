//! The command line of `ibsa agent`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use sa_proto::trust::{ClientTrust, Program, SmEndpoint, TlsFiles, TrustError};

const EXAMPLES: &str = "\
Examples:
  ibsa agent --from https://sa1:7473 --from https://sa2:7473 \\
             --tls-ca ca.pem --tls-cert agent.pem --tls-key agent.key
                                         for all InfiniBand ports of this host
  ibsa agent --from http://127.0.0.1:7473 --device mlx5_0 --port 1 --http 127.0.0.1:9108
                                         for one port, with a responder on this host

The responders need --agents ADDR. The agent needs the capability CAP_NET_ADMIN, and must not run
beside ibacm. Exit status: 0 after SIGTERM or SIGINT, 1 if it cannot run, 2 for wrong options.";

/// Answers the path queries of this host's kernel from memory, so that connections cause no SA
/// queries. What it cannot answer, or not with certainty, the kernel asks the SA
#[derive(Clone, Debug, Parser)]
#[command(
    name = "ibsa agent",
    bin_name = "ibsa agent",
    version,
    max_term_width = 100,
    after_help = EXAMPLES
)]
pub struct AgentOptions {
    /// Responder to follow, the URL of its --agents; repeat for others: agents spread over all of
    /// them, those of one switch to the same, and follow another when that fails
    #[arg(long, value_name = "URL", required = true)]
    pub from: Vec<String>,

    /// Only ports of this RDMA device, such as mlx5_0 [default: all InfiniBand ports]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,

    /// Only the port with this number on its device
    #[arg(long, value_name = "N")]
    pub port: Option<u8>,

    /// CA certificates that responders' certificates are verified against, in PEM
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CA")]
    pub tls_ca: Option<PathBuf>,

    /// Certificate of this agent, in PEM, with URI urn:ibsm:role:agent as subject alternative name
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// Follow responders on other hosts without TLS: every host that can reach them is trusted
    #[arg(long)]
    pub insecure: bool,

    /// Address for HTTP /metrics and /healthz [default: no HTTP]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<SocketAddr>,

    /// Where the kernel lists RDMA devices
    #[arg(long, value_name = "DIR", default_value = "/sys/class/infiniband", hide = true)]
    pub sysfs: PathBuf,
}

/// A responder.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its URL.
    pub url: String,
    trust: ClientTrust,
}

impl Source {
    /// The responder at `url`, if it may be followed.
    pub fn new(url: &str, trust: &ClientTrust) -> Result<Self, TrustError> {
        let source = Self { url: url.to_owned(), trust: trust.clone() };
        source.endpoint()?;
        Ok(source)
    }

    /// Where it is; certificates are read for each connection.
    pub(super) fn endpoint(&self) -> Result<SmEndpoint, TrustError> {
        self.trust.endpoint(&self.url)
    }
}

impl AgentOptions {
    /// The responders, and why to trust them.
    pub fn sources(&self) -> Result<Vec<Source>, TrustError> {
        let (ca, cert, key) = (&self.tls_ca, &self.tls_cert, &self.tls_key);
        let files = TlsFiles::of(ca.as_deref(), cert.as_deref(), key.as_deref())?;
        let trust = ClientTrust::new(files, self.insecure).of(Program::Responder);
        self.from.iter().map(|url| Source::new(url, &trust)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn options(arguments: &[&str]) -> AgentOptions {
        AgentOptions::try_parse_from([&["ibsa agent"], arguments].concat()).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        AgentOptions::command().debug_assert();
        let options = options(&["--from", "http://127.0.0.1:1", "--from", "http://[::1]:2"]);
        assert_eq!(options.sources().unwrap().len(), 2);
    }

    /// Each example of the help is a command that is accepted.
    #[test]
    fn the_examples_of_the_help_work() {
        let text = EXAMPLES.replace("\\\n", " ");
        let commands = text.lines().filter_map(|line| line.trim().strip_prefix("ibsa agent "));
        let parsed: Vec<_> = commands
            .map(|command| {
                let words = command.split_whitespace().filter(|word| !word.is_empty());
                AgentOptions::try_parse_from(["ibsa agent"].into_iter().chain(words)).unwrap()
            })
            .collect();
        assert_eq!(parsed.len(), 2);
        assert_eq!(parsed[0].from.len(), 2);
        assert!(parsed[1].sources().is_ok());
    }

    #[test]
    fn a_responder_on_another_host_is_followed_with_tls_or_if_that_is_meant() {
        let far = ["--from", "http://192.0.2.1:1"];
        assert!(matches!(options(&far).sources(), Err(TrustError::Insecure(_))));
        assert!(options(&[&far[..], &["--insecure"]].concat()).sources().is_ok());
        let tls = ["--from", "https://sa1:1"];
        assert!(matches!(options(&tls).sources(), Err(TrustError::NoFiles(_))));
    }
}
