//! libibumad's functions as called by a program, with several ports and threads at once. One test,
//! since a process has one device.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::ptr::null;
use std::time::{Duration, Instant};

use fabric_sim::serve::Server;
use fabric_sim::{Fabric, Options};
use ib_mad::netlist::Net;
use ib_mad::types::PortNum;
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ib_mad::wire::smp::Request;
use umad_preload::export::device::{
    umad_get_ca, umad_get_ca_portguids, umad_get_cas_names, umad_get_issm_path, umad_release_ca,
};
use umad_preload::export::message::{umad_get_mad, umad_set_addr, umad_size, umad_status};
use umad_preload::export::port::{
    umad_close_port, umad_open_port, umad_poll, umad_recv, umad_register, umad_send,
    umad_unregister,
};

const NET: &str = "\
Hca 1 \"H1\"
[1] \"H2\"[1]

Hca 1 \"H2\"
[1] \"H1\"[1]
";

const DIRECTED: c_int = 0x81;
const SUBN_ADM: c_int = 3;

/// A message in a program's memory.
struct Message(Vec<u8>);

impl Message {
    fn new(len: usize) -> Self {
        Self(vec![0; umad_size() + len])
    }

    fn umad(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// Get(NodeInfo) along a directed route.
    fn node_info(tid: u64, path: &[u8]) -> Self {
        let mut message = Self::new(MAD_LEN);
        // SAFETY: it is as long as a header and a MAD.
        unsafe { umad_set_addr(message.umad(), 0xFFFF, 0, 0, 0) };
        let request = Request {
            method: Method::GET,
            tid,
            attribute_id: AttributeId::NODE_INFO,
            attribute_modifier: 0,
            m_key: 0,
        };
        let path: Vec<PortNum> = path.iter().copied().map(PortNum).collect();
        let mad = message.0[umad_size()..].first_chunk_mut().unwrap();
        request.write_directed(mad, &path).unwrap();
        message
    }

    fn send(&mut self, port: c_int, agent: c_int, timeout_ms: c_int) -> c_int {
        let len = self.0.len() - umad_size();
        // SAFETY: `len` bytes follow the header.
        unsafe { umad_send(port, agent, self.umad(), len as c_int, timeout_ms, 1) }
    }

    /// Receives; returns the call's result and the length.
    fn receive(&mut self, port: c_int, timeout_ms: c_int) -> (c_int, c_int) {
        let mut len = (self.0.len() - umad_size()) as c_int;
        // SAFETY: `len` bytes follow the header.
        let result = unsafe { umad_recv(port, self.umad(), &mut len, timeout_ms) };
        (result, len)
    }

    fn status(&mut self) -> c_int {
        // SAFETY: it is as long as a header.
        unsafe { umad_status(self.umad()) }
    }

    fn tid(&mut self) -> u32 {
        // SAFETY: it is longer than a header.
        let mad = unsafe { umad_get_mad(self.umad()) }.cast::<u8>();
        assert_eq!(mad, self.0[umad_size()..].as_mut_ptr());
        MadHeader::new(&self.0[umad_size()..]).unwrap().tid() as u32
    }
}

fn open() -> c_int {
    // SAFETY: a null pointer names any device.
    let port = unsafe { umad_open_port(null(), 0) };
    assert!(port >= 0);
    port
}

fn register(port: c_int, class: c_int, methods: &[Method]) -> c_int {
    let mut mask: [c_long; 2] = [0; 2];
    for method in methods {
        mask[usize::from(method.0 / 64)] |= 1 << (method.0 % 64);
    }
    let version = if class == SUBN_ADM { 2 } else { 1 };
    let rmpp = u8::from(class == SUBN_ADM);
    // SAFETY: the mask is 16 bytes.
    unsafe { umad_register(port, class, version, rmpp, mask.as_ptr()) }
}

fn serve(socket: &str) {
    let options = Options { return_undelivered: true, ..Options::default() };
    let fabric = Fabric::new(&Net::parse("test", NET).unwrap(), options);
    let mut server = Server::bind(fabric, socket).unwrap();
    std::thread::spawn(move || server.run());
}

#[test]
fn a_program_works_with_several_ports_and_threads() {
    let socket = format!("umad-calls-{}", std::process::id());
    serve(&socket);
    // SAFETY: no other thread of this process reads the environment.
    unsafe {
        std::env::set_var("IBSIM_SOCKNAME", &socket);
        std::env::set_var("SIM_HOST", "H1");
    }
    look_at_the_device();

    let (first, second) = (open(), open());
    assert_ne!(first, second);
    let asker = register(first, DIRECTED, &[]);
    assert_eq!((asker, register(second, DIRECTED, &[])), (0, 0));

    // The response arrives at the port that sent the request.
    let mut message = Message::node_info(0x77, &[1]);
    assert_eq!(message.send(first, asker, 1000), 0);
    assert_eq!(umad_poll(first, 5000), 0);
    assert_eq!(umad_poll(second, 20), -libc::ETIMEDOUT);
    let mut received = Message::new(MAD_LEN);
    assert_eq!(received.receive(second, 0).0, -libc::EAGAIN);
    assert_eq!(Message::new(MAD_LEN - 1).receive(first, 0).0, -libc::EINVAL);
    assert_eq!(received.receive(first, 0), (asker, MAD_LEN as c_int));
    assert_eq!((received.status(), received.tid()), (0, 0x77));
    assert_eq!(umad_poll(first, 0), -libc::ETIMEDOUT);

    // This route ends at no node.
    let start = Instant::now();
    assert_eq!(Message::node_info(0x78, &[1, 1]).send(first, asker, 100), 0);
    assert_eq!(received.receive(first, 5000).0, asker);
    assert_eq!((received.status(), received.tid()), (libc::ETIMEDOUT, 0x78));
    assert!(start.elapsed() >= Duration::from_millis(200), "once more before it is given up");

    // A thread waits while another sends.
    let waiting = std::thread::spawn(move || {
        let mut received = Message::new(MAD_LEN);
        (received.receive(second, -1).0, received.tid())
    });
    assert_eq!(Message::node_info(0x79, &[]).send(second, 0, 1000), 0);
    assert_eq!(waiting.join().unwrap(), (0, 0x79));

    // A method belongs to one agent, across all ports.
    let server = register(first, SUBN_ADM, &[Method::GET, Method::SET]);
    assert_eq!(server, 1);
    assert_eq!(register(second, SUBN_ADM, &[Method::SET]), -libc::EPERM);
    assert_eq!(register(second, SUBN_ADM, &[Method::REPORT]), 1);
    assert_eq!((umad_unregister(first, server), umad_unregister(first, server)), (0, -1));
    assert_eq!(register(second, SUBN_ADM, &[Method::SET]), 2);
    assert_eq!(Message::node_info(0x7A, &[]).send(first, server, 100), -libc::EIO);

    assert_eq!((umad_close_port(second), umad_close_port(second)), (0, -libc::EBADF));
    assert_eq!(received.receive(second, 0).0, -libc::EBADF);
    assert_eq!(register(first, SUBN_ADM, &[Method::SET]), 1);
    assert_eq!(umad_close_port(first), 0);
}

fn look_at_the_device() {
    let mut names = [[0; 20]; 4];
    // SAFETY: there is room for four names, and for ten numbers.
    let (count, ports) = unsafe {
        let mut guids = [0; 10];
        let count = umad_get_cas_names(names.as_mut_ptr(), 4);
        (count, umad_get_ca_portguids(null(), guids.as_mut_ptr(), 10))
    };
    assert_eq!((count, ports), (1, 2));
    assert_eq!(names[0][..7].iter().map(|&byte| byte as u8).collect::<Vec<_>>(), b"ibsim0\0");
    let mut ca = MaybeUninit::uninit();
    // SAFETY: names are C strings, `ca` is filled before it is given back.
    unsafe {
        assert_eq!(umad_get_ca(names[0].as_ptr(), ca.as_mut_ptr()), 0);
        assert_eq!(umad_release_ca(ca.as_mut_ptr()), 0);
        assert_eq!(umad_get_ca(c"mlx5_0".as_ptr(), ca.as_mut_ptr()), -libc::ENODEV);
    }
    let mut path = [0 as c_char; 256];
    // SAFETY: there is room for 256 bytes.
    let got = unsafe { umad_get_issm_path(null(), 1, path.as_mut_ptr(), 256) };
    assert_eq!(got, 0);
    let path: Vec<u8> = path.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    assert!(String::from_utf8(path).unwrap().starts_with("/proc/self/fd/"));
    assert_eq!(MgmtClass::SUBN_DIRECTED_ROUTE.0, DIRECTED as u8);
}
