use std::io::{Read, Write};
use std::net::TcpStream;

use tokio_stream::StreamExt as _;

use super::*;
use crate::descriptors::Descriptors;
use crate::trust::local::LocalRoles;

/// The beginning of each connection (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

async fn server() -> (std::net::SocketAddr, Accepted, std::sync::Arc<Counters>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counters = std::sync::Arc::<Counters>::default();
    let acceptor = Acceptor {
        identity: None,
        local: LocalRoles::default(),
        gate: Gate::new(Descriptors::new(1024)),
        counters: counters.clone(),
    };
    (address, accept(listener, acceptor), counters)
}

/// Regression: a connection that sent a part of the preface kept its place.
#[tokio::test]
async fn a_connection_without_the_whole_preface_is_closed() {
    let (address, mut accepted, counters) = server().await;
    let mut clients = [0, 1, PREFACE.len() - 1].map(|len| {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(&PREFACE[..len]).unwrap();
        client
    });
    while counters.silent.load(Relaxed) < clients.len() as u64 {
        let none = tokio::time::timeout(Duration::from_millis(50), accepted.next()).await;
        assert!(none.is_err(), "it is no connection");
    }
    for client in &mut clients {
        assert!(!matches!(client.read(&mut [0]), Ok(1..)), "it is closed");
    }
}

#[tokio::test]
async fn a_preface_may_come_in_parts() {
    let (address, mut accepted, counters) = server().await;
    let mut client = TcpStream::connect(address).unwrap();
    let (begin, end) = PREFACE.split_at(3);
    client.write_all(begin).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.write_all(end).unwrap();
    // It has a second, which may pass on a busy machine.
    let connection = tokio::select! {
        connection = accepted.next() => connection,
        () = async {
            while counters.silent.load(Relaxed) == 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        } => return eprintln!("skipped: the machine is too slow"),
    };
    let connection = connection.unwrap().unwrap();
    let caller = tonic::transport::server::Connected::connect_info(&connection);
    assert_eq!(caller.share(), crate::crowd::Share::User(rustix::process::geteuid().as_raw()));
}
