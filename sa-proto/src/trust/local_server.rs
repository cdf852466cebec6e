//! The program at the other end of an unencrypted connection to this host. Any user may listen on
//! an unprivileged port while its program does not run, so the user who has accepted the connection
//! must be one that is trusted.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use super::local::{ROOT, UserId, tcp_owner};

/// Waits for the program to accept the connection: they double from the first one. Before, the
/// kernel has no owner for its end.
const ACCEPT_DELAY: Duration = Duration::from_millis(1);
const ACCEPT_DELAYS: u32 = 11;

/// A program that is expected at an address of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Program {
    /// A subnet manager, `ibsm`.
    #[default]
    SubnetManager,
    /// A responder, `ibsa`.
    Responder,
    /// A member of an etcd cluster.
    Etcd,
}

impl Program {
    /// Its name, and that of the user that packages run it as.
    fn name(self) -> &'static str {
        match self {
            Self::SubnetManager => "ibsm",
            Self::Responder => "ibsa",
            Self::Etcd => "etcd",
        }
    }

    /// What an operator can do.
    fn remedy(self) -> &'static str {
        match self {
            Self::SubnetManager => "if that is its user, give it by --sm-user; or use TLS",
            Self::Responder | Self::Etcd => "use TLS",
        }
    }
}

/// Connects to a program of this host, if root, our own user or the program's user runs it.
#[derive(Clone, Debug)]
pub struct LocalServer {
    program: Program,
    /// The program's user; without, the one that packages give it.
    user: Option<UserId>,
    /// Our own user.
    own: u32,
}

impl LocalServer {
    /// The server of `program`, which runs as `user` or the user that packages give it.
    pub fn new(program: Program, user: Option<UserId>) -> Self {
        Self { program, user, own: nix::unistd::Uid::effective().as_raw() }
    }

    /// Connects to one of the addresses of `host`, all of which must be of this host.
    async fn connect(self, host: String, port: u16) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("no address of {host}"));
        for address in lookup_host((host.as_str(), port)).await? {
            if !address.ip().to_canonical().is_loopback() {
                let reason = format!("{host} is {}, another host: it needs TLS", address.ip());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    self.check(&stream).await?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Fails unless a trusted user has accepted this connection.
    async fn check(&self, stream: &TcpStream) -> io::Result<()> {
        let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
        let Some(owner) = acceptor(local, peer).await? else {
            let name = self.program.name();
            let reason = format!("the program at {peer} did not accept the connection as {name}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        };
        // If it has been disconnected meanwhile, another socket may have the address.
        stream.peer_addr()?;
        if self.is_trusted(owner) {
            return Ok(());
        }
        let (name, owner) = (self.program.name(), UserId(owner));
        let remedy = self.program.remedy();
        let reason = format!("the program at {peer} is of {owner}, not {name}: {remedy}");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
    }

    fn is_trusted(&self, owner: u32) -> bool {
        if owner == ROOT || owner == self.own {
            return true;
        }
        let packaged = || UserId::of_name(self.program.name()).ok().flatten();
        self.user.or_else(packaged) == Some(UserId(owner))
    }
}

/// The user that accepted the connection from `local` to `peer`; `None` if none does in time.
async fn acceptor(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    for attempt in 0..ACCEPT_DELAYS {
        let owner = tokio::task::spawn_blocking(move || tcp_owner(local, peer)).await;
        if let Some(owner) = owner.map_err(io::Error::other)?? {
            return Ok(Some(owner));
        }
        tokio::time::sleep(ACCEPT_DELAY * 2u32.pow(attempt)).await;
    }
    Ok(None)
}

impl Service<Uri> for LocalServer {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(80);
        let server = self.clone();
        Box::pin(async move { server.connect(host, port).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const OTHER: u32 = 4_000_000;

    fn server(own: u32, user: Option<u32>) -> LocalServer {
        let user = user.map(UserId);
        LocalServer { own, ..LocalServer::new(Program::SubnetManager, user) }
    }

    #[test]
    fn root_our_own_user_and_the_programs_user_are_trusted() {
        let ours = server(1000, None);
        assert!(ours.is_trusted(0) && ours.is_trusted(1000));
        assert!(!ours.is_trusted(OTHER) && !ours.is_trusted(65534));
        let given = server(1000, Some(OTHER));
        assert!(given.is_trusted(OTHER) && given.is_trusted(0) && !given.is_trusted(65534));
    }

    #[tokio::test]
    async fn a_connection_counts_once_it_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = rustix::process::geteuid().as_raw();
        let late = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let accepted = listener.accept().await.unwrap();
            (listener, accepted)
        });
        server(own, None).connect("127.0.0.1".to_owned(), port).await.unwrap();
        let (listener, _accepted) = late.await.unwrap();
        if own == ROOT {
            return;
        }
        // A program of another user than root and ours.
        let accepting = tokio::spawn(async move { listener.accept().await });
        let refused = server(OTHER, None).connect("127.0.0.1".to_owned(), port).await.unwrap_err();
        assert!(refused.to_string().contains("is of user"), "{refused}");
        accepting.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_nothing_accepts_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let stream = TcpStream::connect(at).await.unwrap();
        let local = stream.local_addr().unwrap();
        assert_eq!(tcp_owner(local, at).unwrap(), None);
    }
}
