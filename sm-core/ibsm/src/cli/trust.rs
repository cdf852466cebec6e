//! Certificates, and the addresses that may be open to other machines without them.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use sa_proto::trust::local::{LocalRoles, UserId};
use sa_proto::trust::{ClientTrust, Role, TlsFiles, TrustError};
use sm_config::Settings;

/// Where the certificates of a process are.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsOptions {
    /// CA certificates that sign peers' certificates, in PEM. With --tls-cert and --tls-key,
    /// connections use mutual TLS.
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CA", global = true, help_heading = "TLS")]
    pub tls_ca: Option<PathBuf>,
    /// Certificate of this program, in PEM.
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CERT", global = true, help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, in PEM.
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_KEY", global = true, help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,
    /// Without TLS: the user that another ibsm of this host runs as; root and our own user are
    /// trusted always [default: the user ibsm, if there is one].
    #[arg(long, value_name = "USER", env = "IBSM_SM_USER", global = true, help_heading = "TLS")]
    pub sm_user: Option<UserId>,
}

impl TlsOptions {
    /// What connections to SMs are trusted by.
    pub fn client(&self, insecure: bool) -> Result<ClientTrust, TrustError> {
        Ok(ClientTrust::new(self.files()?, insecure).with_sm_user(self.sm_user))
    }

    /// The files, if they were given.
    pub fn files(&self) -> Result<Option<TlsFiles>, TrustError> {
        TlsFiles::of(self.tls_ca.as_deref(), self.tls_cert.as_deref(), self.tls_key.as_deref())
    }
}

/// The value of `sa_key` if it is not set, as with OpenSM.
const SA_KEY_DEFAULT: u64 = 1;

/// A warning about a key that every host knows.
pub fn sa_key_warning(settings: &Settings) -> Option<String> {
    (settings.sa_key == SA_KEY_DEFAULT).then(|| {
        "sa_key is 1, the default: any host can show it, read ServiceKeys, remove what others \
         registered, and exceed the limits of its port; set another one"
            .to_owned()
    })
}

/// A role of a user of this host, as in `prometheus=viewer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRole {
    user: u32,
    role: Role,
}

impl FromStr for LocalRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, role) = text.split_once('=').ok_or("want USER=ROLE")?;
        let roles = Role::OF_SM.map(Role::name).join(", ");
        let role = Role::of_name(role)
            .filter(|role| Role::OF_SM.contains(role))
            .ok_or_else(|| format!("no role is named {role}; use {roles}"))?;
        let UserId(user) = user.parse()?;
        Ok(Self { user, role })
    }
}

/// The roles of this host's users.
pub(super) fn local_roles(given: &[LocalRole]) -> LocalRoles {
    let mut roles = LocalRoles::default();
    given.iter().for_each(|given| roles.give(given.user, given.role));
    roles
}

/// An unprotected address that other machines can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExposureError {
    /// That of the feed.
    #[error(
        "--publish {0} can be reached from other machines without TLS: any of them could read the \
         subnet's sa_key, register records for clients and receive their queries. Give --tls-ca, \
         --tls-cert and --tls-key (scripts/make-certs.sh makes them for a test bed), or \
         --insecure if every machine that can reach it is trusted"
    )]
    Publish(SocketAddr),
    /// That of the API.
    #[error(
        "--api {0} can be reached from other machines without TLS: passwords and tokens would be \
         readable on the way. Give --tls-ca, --tls-cert and --tls-key, or --insecure if every \
         machine that can reach it is trusted"
    )]
    Api(SocketAddr),
    /// That of the front door.
    #[error(
        "--front-door {0} can be reached from other machines, and its datagrams are not \
         authenticated: a machine that forges a responder's address could answer clients as the \
         SA. Give --insecure if every machine that can reach it is trusted"
    )]
    FrontDoor(SocketAddr),
}

/// A listener that is open to other machines by permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exposure {
    /// The option that gives its address.
    pub(super) option: &'static str,
    /// The address, and what that means.
    pub(super) text: String,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.option, self.text)
    }
}

/// Checks that passwords for the API are not sent in the clear without permission; returns a
/// warning if they are.
pub(super) fn check_api(
    api: Option<SocketAddr>,
    tls: bool,
    insecure: bool,
) -> Result<Vec<Exposure>, ExposureError> {
    let is_open = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
    let Some(address) = api.filter(is_open).filter(|_| !tls) else { return Ok(Vec::new()) };
    if !insecure {
        return Err(ExposureError::Api(address));
    }
    let text = format!(
        "{address} can be reached from other machines without encryption: passwords and tokens are \
         readable on the way, and who reads them can change partitions; use TLS"
    );
    Ok(vec![Exposure { option: "--api", text }])
}

/// A warning if the console is open to other machines.
pub(super) fn check_console(settings: &Settings, insecure: bool) -> Vec<Exposure> {
    if settings.console.as_deref() != Some("socket") {
        return Vec::new();
    }
    let port = settings.console_port;
    let what = match insecure {
        false => "read the state of the subnet without authentication; use console loopback",
        true => {
            "give orders without authentication, since --insecure is given; use console loopback"
        }
    };
    let text =
        format!("socket (port {port}) can be reached from other machines: any of them can {what}");
    vec![Exposure { option: "console", text }]
}

/// Checks that no listener is open to other machines without permission; returns warnings about
/// those that are.
pub(super) fn check(
    publish: SocketAddr,
    front_door: SocketAddr,
    tls: bool,
    insecure: bool,
) -> Result<Vec<Exposure>, ExposureError> {
    let is_open = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    let mut warnings = Vec::new();
    if is_open(publish) && !tls {
        if !insecure {
            return Err(ExposureError::Publish(publish));
        }
        let text = format!(
            "{publish} can be reached from other machines without authentication or \
             encryption: any of them can read the subnet's sa_key and register as a responder \
             that receives clients' queries; restrict access to responders"
        );
        warnings.push(Exposure { option: "--publish", text });
    }
    if is_open(front_door) {
        if !insecure {
            return Err(ExposureError::FrontDoor(front_door));
        }
        let text = format!(
            "{front_door} can be reached from other machines without authentication: \
             a machine that forges a responder's address can answer clients as the SA; restrict \
             access to responders"
        );
        warnings.push(Exposure { option: "--front-door", text });
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(
        publish: &str,
        front_door: &str,
        tls: bool,
        insecure: bool,
    ) -> Result<Vec<String>, ExposureError> {
        let exposures = check(publish.parse().unwrap(), front_door.parse().unwrap(), tls, insecure);
        exposures.map(|all| all.iter().map(Exposure::to_string).collect())
    }

    #[test]
    fn what_stays_on_this_machine_needs_nothing() {
        assert_eq!(checked("127.0.0.1:7471", "[::1]:0", false, false), Ok(vec![]));
        assert_eq!(checked("[::ffff:127.0.0.1]:7471", "127.0.0.2:0", false, false), Ok(vec![]));
    }

    #[test]
    fn a_feed_open_to_other_machines_needs_tls_or_that_it_is_meant() {
        let (open, here) = ("0.0.0.0:7471", "127.0.0.1:0");
        let refusal = checked(open, here, false, false).unwrap_err();
        assert!(matches!(refusal, ExposureError::Publish(_)));
        assert!(refusal.to_string().contains("sa_key"));
        assert_eq!(checked(open, here, true, false), Ok(vec![]));
        let warnings = checked(open, here, false, true).unwrap();
        assert!(warnings[0].starts_with("--publish 0.0.0.0:7471") && warnings.len() == 1);
    }

    #[test]
    fn a_key_that_every_host_knows_is_reported() {
        let mut settings = Settings::default();
        assert!(sa_key_warning(&settings).unwrap().contains("ServiceKeys"));
        settings.set("sa_key", "0x5ec2e7").unwrap();
        assert_eq!(sa_key_warning(&settings), None);
    }

    #[test]
    fn local_roles_name_a_user_of_this_host_or_a_number() {
        let parsed = |text: &str| text.parse::<LocalRole>();
        assert_eq!(parsed("root=viewer"), Ok(LocalRole { user: 0, role: Role::Viewer }));
        assert_eq!(parsed("65534=responder"), Ok(LocalRole { user: 65534, role: Role::Responder }));
        assert_eq!(
            parsed("root=operator").unwrap_err(),
            "no role is named operator; use responder, admin, viewer"
        );
        assert_eq!(parsed("no-such=admin").unwrap_err(), "this host has no user no-such");
        assert!(parsed("root").is_err());
    }

    #[test]
    fn a_console_open_to_other_machines_is_an_unsafe_setting() {
        let console =
            |kind: &str| Settings { console: Some(kind.to_owned()), ..Settings::default() };
        assert_eq!(check_console(&console("loopback"), true), vec![]);
        let text = |insecure| check_console(&console("socket"), insecure)[0].to_string();
        assert!(text(false).contains("any of them can read"), "{}", text(false));
        assert!(text(true).contains("any of them can give orders"), "{}", text(true));
    }

    #[test]
    fn an_api_open_to_other_machines_needs_tls_or_that_it_is_meant() {
        let open: SocketAddr = "0.0.0.0:443".parse().unwrap();
        assert_eq!(check_api(Some(open), false, false), Err(ExposureError::Api(open)));
        assert_eq!(check_api(Some(open), true, false), Ok(vec![]));
        assert_eq!(check_api(Some("127.0.0.1:80".parse().unwrap()), false, false), Ok(vec![]));
        // Regression: with permission, there was no warning.
        let warnings = check_api(Some(open), false, true).unwrap();
        assert!(warnings[0].to_string().starts_with("--api 0.0.0.0:443 can be reached"));
    }

    #[test]
    fn tls_does_not_protect_the_front_door() {
        let (here, open) = ("127.0.0.1:7471", "192.0.2.1:0");
        let refusal = checked(here, open, true, false).unwrap_err();
        assert!(matches!(refusal, ExposureError::FrontDoor(_)));
        let warnings = checked(here, open, true, true).unwrap();
        assert!(warnings[0].starts_with("--front-door 192.0.2.1:0") && warnings.len() == 1);
    }
}
