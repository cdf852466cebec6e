//! `--store`: where registrations are kept.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;

/// Bytes of a prefix, at most.
const PREFIX_LEN_MAX: usize = 200;
/// Members, at most. A larger cluster is slower, not safer.
const MEMBERS_MAX: usize = 16;

/// Where registrations are kept, and how to reach it.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreOptions {
    /// Where registrations are kept: file:DIR for this manager alone [default: file: and
    /// --state-dir], or etcd://HOST:PORT,HOST:PORT,HOST:PORT/PREFIX, an etcd cluster that the
    /// subnet's managers share. PREFIX, such as ibsm/subnet1, is the subnet's own.
    #[arg(long, value_name = "URL", help_heading = "Store")]
    pub store: Option<StoreUrl>,
    /// etcd: CA certificates that sign the members' certificates, in PEM; connections use TLS.
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub store_ca: Option<PathBuf>,
    /// etcd: certificate of this manager, in PEM, if the members ask for one.
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub store_cert: Option<PathBuf>,
    /// etcd: private key of --store-cert, in PEM.
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub store_key: Option<PathBuf>,
}

/// Where registrations are kept, checked.
#[derive(Clone, Debug)]
pub enum StorePlace {
    /// In this directory.
    File(PathBuf),
    /// In a cluster.
    Etcd(EtcdLocation),
}

/// Why the options of the store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOptionError {
    /// `--follow` or `--follow-sync` with etcd.
    #[error(
        "{0} does not go with --store etcd://: a standby reads the registrations in etcd, where \
         each is stored before it is acknowledged; leave {0} out"
    )]
    Follow(&'static str),
    /// `--follow-config` without another manager.
    #[error(
        "--follow-config needs another manager's files: give --follow URL, or --store etcd://…"
    )]
    NothingToCopy,
    /// Certificates without etcd.
    #[error("--store-ca, --store-cert and --store-key need --store etcd://…")]
    TlsOfFile,
    /// A certificate without its key, or without a CA.
    #[error("give --store-cert and --store-key together, and --store-ca with them")]
    Incomplete,
    /// A file.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl StoreOptions {
    /// The place; `state_dir` without `--store`. `follow` and `follow_sync` say which of these
    /// options are given.
    pub(super) fn place(
        &self,
        state_dir: &Path,
        follow: bool,
        follow_sync: bool,
    ) -> Result<StorePlace, StoreOptionError> {
        let names_tls =
            [&self.store_ca, &self.store_cert, &self.store_key].iter().any(|file| file.is_some());
        let (endpoints, prefix) = match &self.store {
            None | Some(StoreUrl::File(_)) if names_tls => return Err(StoreOptionError::TlsOfFile),
            None => return Ok(StorePlace::File(state_dir.to_owned())),
            Some(StoreUrl::File(directory)) => return Ok(StorePlace::File(directory.clone())),
            Some(StoreUrl::Etcd { endpoints, prefix }) => (endpoints.clone(), prefix.clone()),
        };
        for (is_given, option) in [(follow, "--follow"), (follow_sync, "--follow-sync")] {
            if is_given {
                return Err(StoreOptionError::Follow(option));
            }
        }
        Ok(StorePlace::Etcd(EtcdLocation { endpoints, prefix, tls: self.tls()? }))
    }

    fn tls(&self) -> Result<Option<EtcdTls>, StoreOptionError> {
        let read = |path: &Path| {
            fs::read(path)
                .map_err(|source| StoreOptionError::Read { path: path.to_owned(), source })
        };
        let identity = match (&self.store_cert, &self.store_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            (None, None) => None,
            _ => return Err(StoreOptionError::Incomplete),
        };
        match &self.store_ca {
            Some(ca) => Ok(Some(EtcdTls { ca: read(ca)?, identity })),
            None if identity.is_some() => Err(StoreOptionError::Incomplete),
            None => Ok(None),
        }
    }
}

/// The value of `--store`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `file:DIR`: the file `registry.redb` in this directory.
    File(PathBuf),
    /// `etcd://HOST:PORT,…/PREFIX`.
    Etcd {
        /// The members, host and port each.
        endpoints: Vec<String>,
        /// What all keys begin with: a slash and at least one more character, no slash at the end.
        prefix: String,
    },
}

/// Why a value of `--store` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreUrlError {
    /// Neither of the two.
    #[error("give file:DIR or etcd://HOST:PORT,HOST:PORT,HOST:PORT/PREFIX")]
    Scheme,
    /// A member without host or port.
    #[error("'{0}' is not HOST:PORT; members are separated by commas, and etcd's port is 2379")]
    Member(String),
    /// No prefix.
    #[error("the prefix is missing, such as /ibsm: it separates subnets that share a cluster")]
    Prefix,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        if let Some(directory) = text.strip_prefix("file:").filter(|rest| !rest.is_empty()) {
            return Ok(Self::File(directory.into()));
        }
        let rest = text.strip_prefix("etcd://").ok_or(StoreUrlError::Scheme)?;
        let (members, prefix) = rest.split_once('/').ok_or(StoreUrlError::Prefix)?;
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() || prefix.len() > PREFIX_LEN_MAX {
            return Err(StoreUrlError::Prefix);
        }
        let endpoint = |member: &str| {
            let (host, port) = member.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
            let is_plain = host.chars().all(|c| c.is_ascii_alphanumeric() || "-._[]:".contains(c));
            (is_plain && port.parse::<u16>().is_ok_and(|port| port != 0)).then(|| member.to_owned())
        };
        let endpoints = members
            .split(',')
            .take(MEMBERS_MAX)
            .map(|member| endpoint(member).ok_or_else(|| StoreUrlError::Member(member.to_owned())));
        let endpoints = endpoints.collect::<Result<_, _>>()?;
        Ok(Self::Etcd { endpoints, prefix: format!("/{prefix}") })
    }
}

/// A cluster, and how to reach it.
#[derive(Clone, Debug)]
pub struct EtcdLocation {
    /// Its members, host and port each; at least one.
    pub endpoints: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// TLS, if the members have it.
    pub tls: Option<EtcdTls>,
}

/// Certificates for connections to etcd, in PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// CA of the members.
    pub ca: Vec<u8>,
    /// Our certificate and its key, if the members ask for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for EtcdTls {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").field("identity", &self.identity.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_directory_or_a_cluster_with_a_prefix() {
        let parsed = |text: &str| text.parse::<StoreUrl>();
        assert_eq!(parsed("file:/var/lib/x"), Ok(StoreUrl::File("/var/lib/x".into())));
        let etcd = |endpoints: &[&str], prefix: &str| {
            let endpoints = endpoints.iter().map(|member| (*member).to_owned()).collect();
            Ok(StoreUrl::Etcd { endpoints, prefix: prefix.to_owned() })
        };
        assert_eq!(
            parsed("etcd://a:1,b.c:2379,[::1]:3/x/y/"),
            etcd(&["a:1", "b.c:2379", "[::1]:3"], "/x/y",)
        );
        for scheme in ["", "file:", "http://a:1/x", "/var/lib"] {
            assert_eq!(parsed(scheme), Err(StoreUrlError::Scheme), "{scheme}");
        }
        for prefix in ["etcd://a:1", "etcd://a:1/", "etcd://a:1//"] {
            assert_eq!(parsed(prefix), Err(StoreUrlError::Prefix));
        }
        for member in ["etcd://a/x", "etcd://a:1,/x", "etcd://:1/x", "etcd://a b:1/x"] {
            assert!(matches!(parsed(member), Err(StoreUrlError::Member(_))), "{member}");
        }
    }

    fn place(arguments: &[&str]) -> Result<StorePlace, String> {
        use clap::Parser as _;
        let options = super::super::Options::parse_from([&["ibsm"], arguments].concat());
        let follow = !options.follow.is_empty();
        let place = options.store.place(&options.state_dir, follow, options.follow_sync);
        place.map_err(|error| error.to_string())
    }

    #[test]
    fn without_the_option_the_state_directory_is_the_store() {
        let place = |arguments: &[&str]| match place(arguments) {
            Ok(StorePlace::File(directory)) => directory,
            other => panic!("{other:?}"),
        };
        assert_eq!(place(&["--state-dir", "/a"]), Path::new("/a"));
        assert_eq!(place(&["--state-dir", "/a", "--store", "file:/b"]), Path::new("/b"));
    }

    #[test]
    fn options_that_do_not_go_together_are_refused_with_what_to_do() {
        let refusal = |arguments: &[&str]| place(arguments).unwrap_err();
        let etcd = ["--store", "etcd://a:2379/x"];
        let follow = refusal(&[&etcd[..], &["--follow", "http://b:7471"]].concat());
        assert!(follow.starts_with("--follow does not go with --store etcd://"), "{follow}");
        let sync = refusal(&[&etcd[..], &["--follow-sync"]].concat());
        assert!(sync.starts_with("--follow-sync does not go"), "{sync}");
        assert!(refusal(&["--store-ca", "/x"]).contains("need --store etcd"));
        let half = refusal(&[&etcd[..], &["--store-cert", "/dev/null"]].concat());
        assert!(half.contains("together"), "{half}");
        let missing = refusal(&[&etcd[..], &["--store-ca", "/nowhere"]].concat());
        assert!(missing.starts_with("cannot read /nowhere"), "{missing}");
    }

    #[test]
    fn files_of_another_manager_come_from_its_feed_or_from_etcd() {
        use clap::Parser as _;
        let load = |arguments: &[&str]| {
            let arguments = [&["ibsm", "-F", "/dev/null"], arguments].concat();
            let options = super::super::Options::parse_from(arguments);
            super::super::Config::load(options).map_err(|error| error.to_string())
        };
        let refusal = load(&["--follow-config"]).unwrap_err();
        assert!(refusal.contains("--follow URL"), "{refusal}");
        for other in [["--follow", "http://127.0.0.1:1"], ["--store", "etcd://a:2379/x"]] {
            let (config, _) = load(&[&["--follow-config"], &other[..]].concat()).unwrap();
            assert!(config.follow_config);
        }
    }
}
