use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::*;
use crate::transport::{Address, Grh};
use crate::types::{Lid, PKey, PortNum, Qpn, SUBNET_PREFIX_DEFAULT, Sl};
use crate::wire::attribute::PortState;
use crate::wire::sa::SaMad;

/// A directory like sysfs with two ports, removed at the end.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("ib-mad-umad-{name}-{}", std::process::id()));
        let this = Self(root);
        this.put("infiniband_mad/abi_version", "5\n");
        for (umad, device, state, lid) in
            [("umad0", "rxe0", "1: DOWN", "0x0"), ("umad1", "mlx5_0", "4: ACTIVE", "0x2f")]
        {
            this.put(&format!("infiniband_mad/{umad}/ibdev"), &format!("{device}\n"));
            this.put(&format!("infiniband_mad/{umad}/port"), "1\n");
            let port = format!("infiniband/{device}/ports/1");
            this.put(&format!("{port}/state"), &format!("{state}\n"));
            this.put(&format!("{port}/lid"), &format!("{lid}\n"));
            this.put(&format!("{port}/lid_mask_count"), "1\n");
            this.put(&format!("{port}/sm_lid"), "0x1\n");
            this.put(&format!("{port}/sm_sl"), "3\n");
            for index in 0..4 {
                let gid = Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0x10 + index));
                let gid = if index == 2 { Gid::ZERO } else { gid };
                this.put(&format!("{port}/gids/{index}"), &format!("{gid}\n"));
            }
            for (index, pkey) in ["0x7fff", "0x8001", "0x0000"].iter().enumerate() {
                this.put(&format!("{port}/pkeys/{index}"), &format!("{pkey}\n"));
            }
        }
        this
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn port(&self) -> UmadPort {
        UmadPort::find_at(&self.0, Some("mlx5_0"), None).unwrap()
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file with scripted reads that records what was written.
struct Scripted {
    reads: RefCell<VecDeque<Result<Vec<u8>, i32>>>,
    writes: RefCell<VecDeque<i32>>,
    written: RefCell<Vec<Vec<u8>>>,
    descriptor: UnixDatagram,
}

impl Device for Scripted {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut reads = self.reads.borrow_mut();
        let error = |number| Err(io::Error::from_raw_os_error(number));
        match reads.pop_front() {
            None => error(libc::EAGAIN),
            Some(Err(number)) => error(number),
            // As in the kernel: the start is returned, and the message stays queued.
            Some(Ok(record)) if record.len() > buffer.len() => {
                let len = buffer.len();
                buffer.copy_from_slice(&record[..len]);
                reads.push_front(Ok(record));
                error(libc::ENOSPC)
            }
            Some(Ok(record)) => {
                buffer[..record.len()].copy_from_slice(&record);
                Ok(record.len())
            }
        }
    }

    fn write(&self, record: &[u8]) -> io::Result<usize> {
        match self.writes.borrow_mut().pop_front().unwrap_or(0) {
            0 => {
                self.written.borrow_mut().push(record.to_vec());
                Ok(record.len())
            }
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }
}

impl AsFd for Scripted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn umad(sysfs: &Sysfs, reads: Vec<Result<Vec<u8>, i32>>) -> Umad<Scripted> {
    let device = Scripted {
        reads: RefCell::new(reads.into()),
        writes: RefCell::default(),
        written: RefCell::default(),
        descriptor: UnixDatagram::unbound().unwrap(),
    };
    Umad::new(device, &UmadOptions::sa_responder(sysfs.port())).unwrap()
}

/// A request in the form in which it is read.
fn request(tid: u64, change: impl Fn(&mut Header)) -> Vec<u8> {
    let mut header = Header::ZERO;
    header.set_qpn(0x77).set_lid(5).set_sl_and_path_bits(2, 1).set_pkey_index(1);
    header.set_length(RECORD_LEN as u32);
    change(&mut header);
    let mut mad = [0; MAD_LEN];
    let mut view = SaMad::new(&mut mad);
    view.header_mut()
        .set_base_version(1)
        .set_mgmt_class(MgmtClass::SUBN_ADM)
        .set_method(Method::GET)
        .set_tid(tid);
    [&header.0[..], &mad].concat()
}

fn tids(batch: &[Packet]) -> Vec<u64> {
    batch.iter().map(|packet| SaMad::new(&packet.mad).header().tid()).collect()
}

#[test]
fn ports_are_found_by_device_file_or_state() {
    let sysfs = Sysfs::new("find");
    let find = |name, num: Option<u8>| UmadPort::find_at(&sysfs.0, name, num.map(PortNum));
    assert_eq!(find(None, None).unwrap().umad, "umad1", "the active one");
    assert_eq!(find(Some("rxe0"), None).unwrap().umad, "umad0");
    assert_eq!(find(Some("/dev/infiniband/umad1"), Some(1)).unwrap().device, "mlx5_0");
    let error = find(Some("mlx5_0"), Some(2)).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no umad device for mlx5_0 port 2; available: rxe0 port 1 (umad0), mlx5_0 port 1 \
         (umad1)"
    );
    assert!(matches!(UmadPort::all_at(Path::new("/nowhere")), Err(UmadError::NoModule)));
    let local = sysfs.port().local().unwrap();
    assert_eq!((local.guid, local.lid, local.lmc), (Guid(0x10), Lid(0x2f), 1));
    assert_eq!((local.sm_lid, local.sm_sl.get()), (Lid(1), 3));
    assert_eq!(local.state, Some(PortState::Active));
}

#[test]
fn what_waits_is_read_to_the_end() {
    let sysfs = Sysfs::new("drain");
    let mut umad = umad(&sysfs, (1..=5).map(|tid| Ok(request(tid, |_| {}))).collect());
    let mut batch = vec![Packet::default(); 3];
    assert_eq!(umad.receive(&mut batch).unwrap(), 3);
    assert_eq!(tids(&batch), [1, 2, 3]);
    assert_eq!(umad.receive(&mut batch).unwrap(), 2);
    assert_eq!(tids(&batch[..2]), [4, 5]);
    assert_eq!(umad.receive(&mut batch).unwrap(), 0);
    let address = &batch[0].address;
    assert_eq!((address.lid, address.qpn, address.local_qpn), (Lid(5), Qpn(0x77), Qpn::GSI));
    assert_eq!((address.sl.get(), address.path_bits, address.pkey), (2, 1, PKey(0x8001)));
    assert_eq!((address.grh, batch[0].carrier.undelivered), (None, 0));
    assert_eq!(umad.counters().received, 5);
}

/// Short records, interruptions, unknown agents and messages beyond the buffer are skipped.
#[test]
fn what_is_no_packet_is_passed_over() {
    let sysfs = Sysfs::new("malformed");
    let mut long = request(9, |header| {
        header.set_length(10_360);
    });
    long.resize(10_360, 0);
    let reads = vec![
        Ok(vec![0; 10]),
        Err(libc::EINTR),
        Ok(request(1, |_| {})[..200].to_vec()),
        Ok(long),
        Ok(request(2, |header| {
            header.set_agent_id(7);
        })),
        Ok(request(3, |_| {})),
    ];
    let mut umad = umad(&sysfs, reads);
    let mut batch = vec![Packet::default(); 16];
    assert_eq!(umad.receive(&mut batch).unwrap(), 1);
    assert_eq!(tids(&batch[..1]), [3]);
    assert_eq!(umad.malformed().length, 4);
}

#[test]
fn a_request_of_ours_comes_back_when_its_time_is_up() {
    let sysfs = Sysfs::new("returned");
    let mut record = request(0x0000_0006_0000_1000, |header| {
        header.set_status(110);
    });
    record.truncate(HEADER_LEN + MAD_HEADER_LEN);
    let mut umad = umad(&sysfs, vec![Ok(record)]);
    let mut batch = [Packet { mad: [0xEE; MAD_LEN], ..Packet::default() }];
    assert_eq!(umad.receive(&mut batch).unwrap(), 1);
    assert_eq!(batch[0].carrier.undelivered, 110);
    assert_eq!(tids(&batch), [0x0000_0006_0000_1000]);
    assert!(batch[0].mad[MAD_HEADER_LEN..].iter().all(|&byte| byte == 0));
    assert_eq!(umad.counters().undelivered, 1);
}

#[test]
fn a_device_that_is_gone_fails_after_what_it_still_had() {
    let sysfs = Sysfs::new("gone");
    let mut umad = umad(&sysfs, vec![Ok(request(1, |_| {})), Err(libc::EIO), Err(libc::EIO)]);
    let mut batch = vec![Packet::default(); 4];
    assert_eq!(umad.receive(&mut batch).unwrap(), 1);
    assert_eq!(umad.receive(&mut batch).unwrap_err().raw_os_error(), Some(libc::EIO));
    *umad.device.writes.borrow_mut() = [0, libc::EIO, libc::EIO].into();
    batch.iter_mut().for_each(|packet| *packet = answer());
    assert_eq!(umad.send(&batch).unwrap(), 1);
    assert!(umad.send(&batch).is_err());
}

/// Regression: an empty read counted as a malformed message, and the file stayed readable: the
/// reader looped.
#[test]
fn a_file_at_its_end_is_one_whose_device_is_gone() {
    let sysfs = Sysfs::new("end");
    let mut umad = umad(&sysfs, vec![Ok(request(1, |_| {})), Ok(vec![]), Ok(vec![])]);
    let mut batch = vec![Packet::default(); 4];
    assert_eq!(umad.receive(&mut batch).unwrap(), 1);
    assert_eq!(umad.receive(&mut batch).unwrap_err().raw_os_error(), Some(libc::EIO));
}

/// The manager's file has no agent that receives requests of subnet administration, so that
/// another process can serve them; what it sends in that class leaves by its client agent.
#[test]
fn the_managers_file_leaves_requests_of_the_sa_to_another_one() {
    let sysfs = Sysfs::new("manager");
    let options = UmadOptions::subnet_manager(sysfs.port(), Duration::from_millis(90));
    let serves = |spec: &&AgentSpec| spec.class == MgmtClass::SUBN_ADM && spec.methods != 0;
    assert_eq!(options.agents.iter().find(serves), None);
    let device = Scripted {
        reads: RefCell::default(),
        writes: RefCell::default(),
        written: RefCell::default(),
        descriptor: UnixDatagram::unbound().unwrap(),
    };
    let mut umad = Umad::new(device, &options).unwrap();
    umad.send(&[answer()]).unwrap();
    assert_eq!(umad.counters().refused, 0);
    assert_eq!(written(&umad, 0).agent_id(), 2);
}

fn answer() -> Packet {
    let address = Address { lid: Lid(5), pkey: PKey(0xFFFF), ..Address::default() };
    let mut packet = Packet::to(address);
    SaMad::new(&mut packet.mad)
        .header_mut()
        .set_mgmt_class(MgmtClass::SUBN_ADM)
        .set_method(Method::GET_RESP);
    packet
}

/// A packet that cannot be sent does not prevent others from being sent.
#[test]
fn packets_that_are_refused_count_as_taken() {
    let sysfs = Sysfs::new("refused");
    let mut umad = umad(&sysfs, vec![]);
    *umad.device.writes.borrow_mut() = [libc::EINVAL, libc::ETIMEDOUT, 0].into();
    let mut batch = vec![answer(); 5];
    batch[3].address.pkey = PKey(0x8002);
    batch[4].address.local_qpn = Qpn::SMI;
    assert_eq!(umad.send(&batch).unwrap(), 5);
    let UmadCounters { sent, refused, refused_error, .. } = umad.counters();
    assert_eq!((sent, refused, refused_error), (1, 4, libc::EADDRNOTAVAIL));
}

/// The header of the `nth` message written.
fn written(umad: &Umad<Scripted>, nth: usize) -> Header {
    Header(*umad.device.written.borrow()[nth].first_chunk().unwrap())
}

#[test]
fn only_requests_wait_for_an_answer() {
    let sysfs = Sysfs::new("timeout");
    let mut umad = umad(&sysfs, vec![]);
    let mut report = answer();
    SaMad::new(&mut report.mad).header_mut().set_method(Method::REPORT);
    assert_eq!(umad.send(&[answer(), report]).unwrap(), 2);
    assert_eq!((written(&umad, 0).timeout_ms(), written(&umad, 0).retries()), (0, 0));
    assert_eq!((written(&umad, 1).timeout_ms(), written(&umad, 1).retries()), (900, 0));
    assert_eq!(umad.device.written.borrow()[0].len(), RECORD_LEN);
    assert_eq!(written(&umad, 0).pkey_index(), 0, "the limited key of the same partition");
    assert_eq!(written(&umad, 0).qkey(), Qpn::GSI_QKEY);
}

/// Regression: all requests had one timeout, also those that take longer or are retried sooner
/// because of losses: the kernel dropped responses after it, and refused retries before it.
#[test]
fn a_request_waits_as_long_as_it_says() {
    let sysfs = Sysfs::new("own-timeout");
    let mut umad = umad(&sysfs, vec![]);
    let batch = [0, 10_000, 20, 1].map(|timeout_ms| {
        let mut report = answer();
        SaMad::new(&mut report.mad).header_mut().set_method(Method::REPORT);
        report.carrier.answer_timeout_ms = timeout_ms;
        report
    });
    assert_eq!(umad.send(&batch).unwrap(), 4);
    assert_eq!([0, 1, 2, 3].map(|nth| written(&umad, nth).timeout_ms()), [900, 8999, 17, 1]);
}

/// A response is sent from the GID that its request was addressed to, and has a GRH only if the
/// request had one.
#[test]
fn an_answer_goes_back_as_its_request_came() {
    let sysfs = Sysfs::new("grh");
    let grh = Grh {
        remote_gid: Gid([7; 16]),
        local_gid: Gid::ZERO,
        traffic_class: 3,
        flow_label: 0xABCDE,
        hop_limit: 1,
    };
    let with_grh = request(1, |header| {
        header.set_grh(Some(&grh)).set_gid_index(3);
    });
    let mut umad = umad(&sysfs, vec![Ok(with_grh), Ok(request(2, |_| {}))]);
    let mut batch = vec![Packet::default(); 2];
    assert_eq!(umad.receive(&mut batch).unwrap(), 2);
    let near = Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0x13));
    assert_eq!(batch[0].address.grh, Some(Grh { local_gid: near, ..grh }));
    for packet in &mut batch {
        SaMad::new(&mut packet.mad).header_mut().set_method(Method::GET_RESP);
    }
    umad.send(&batch).unwrap();
    let header = written(&umad, 0);
    assert_eq!((header.gid_index(), header.pkey_index()), (3, 1));
    let local = batch[0].address;
    let sent = header.address(Qpn::GSI, PKey(0x8001), near);
    let expected = Grh { hop_limit: HOP_LIMIT, local_gid: near, ..grh };
    assert_eq!(sent, Address { grh: Some(expected), ..local });
    assert!(!written(&umad, 1).grh_present());
    assert_eq!(written(&umad, 1).sl(), Sl::from_low_bits(2).get());
}

/// A P_Key or GID that the subnet manager has added since is looked up, once.
#[test]
fn tables_follow_the_subnet_manager() {
    let sysfs = Sysfs::new("tables");
    let by_new_key = request(1, |header| {
        header.set_pkey_index(2);
    });
    let mut umad = umad(&sysfs, vec![Ok(by_new_key.clone()), Ok(by_new_key)]);
    sysfs.put("infiniband/mlx5_0/ports/1/pkeys/2", "0x8123\n");
    let mut batch = vec![Packet::default(); 2];
    assert_eq!(umad.receive(&mut batch).unwrap(), 2);
    assert_eq!(batch[1].address.pkey, PKey(0x8123));

    let alias = Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0x99));
    let grh = Some(Grh { local_gid: alias, ..Grh::default() });
    let mut by_alias = answer();
    by_alias.address.grh = grh;
    umad.send(std::slice::from_ref(&by_alias)).unwrap();
    assert_eq!(written(&umad, 0).gid_index(), 0);
    sysfs.put("infiniband/mlx5_0/ports/1/gids/3", &format!("{alias}\n"));
    umad.refresh().unwrap();
    umad.send(&[by_alias]).unwrap();
    assert_eq!(written(&umad, 1).gid_index(), 3);
}

/// A host with a planarized port: mlx5_0, and smi1 with a port in each of four planes.
fn planarized(name: &str) -> Sysfs {
    let sysfs = Sysfs::new(name);
    let gid = Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0x99));
    let ports = [("mlx5_0", 1, 0x400)].into_iter().chain((1..=4).map(|num| ("smi1", num, 0x48)));
    for (number, (device, num, capabilities)) in ports.enumerate() {
        let umad = format!("infiniband_mad/umad{}", number + 1);
        sysfs.put(&format!("{umad}/ibdev"), &format!("{device}\n"));
        sysfs.put(&format!("{umad}/port"), &format!("{num}\n"));
        let port = format!("infiniband/{device}/ports/{num}");
        let attributes = [("lid", "0x2f"), ("lid_mask_count", "0"), ("sm_lid", "0x1")];
        let attributes = attributes.into_iter().chain([("sm_sl", "0"), ("state", "4: ACTIVE")]);
        for (name, value) in attributes.chain([("pkeys/0", "0x7fff")]) {
            sysfs.put(&format!("{port}/{name}"), &format!("{value}\n"));
        }
        sysfs.put(&format!("{port}/cap_mask"), &format!("{capabilities:#010x}\n"));
        sysfs.put(&format!("{port}/gids/0"), &format!("{gid}\n"));
    }
    sysfs
}

#[test]
fn a_planarized_port_is_found_by_any_of_its_files() {
    let sysfs = planarized("pairing");
    let find = |name, num| UmadPort::find_at(&sysfs.0, Some(name), Some(PortNum(num))).unwrap();
    for (name, num) in [("mlx5_0", 1), ("smi1", 1), ("smi1", 3)] {
        let HostPort::Planar { gsi, planes } = find(name, num).with_planes().unwrap() else {
            panic!("{name} is planarized");
        };
        assert_eq!(gsi.device, "mlx5_0");
        let planes: Vec<u8> = planes.iter().map(|plane| plane.num.0).collect();
        assert_eq!(planes, [1, 2, 3, 4]);
    }
    let single = find("rxe0", 1);
    assert_eq!(single.with_planes().unwrap(), HostPort::Single(single));
    // Without a side for data, the rule does not fit.
    sysfs.put("infiniband/mlx5_0/ports/1/cap_mask", "0x48\n");
    let failure = find("smi1", 2).with_planes().unwrap_err();
    assert!(matches!(&failure, UmadError::NotPlanarized { ports, .. } if ports.len() == 5));
}

fn scripted(options: &UmadOptions, reads: Vec<Result<Vec<u8>, i32>>) -> Umad<Scripted> {
    let device = Scripted {
        reads: RefCell::new(reads.into()),
        writes: RefCell::default(),
        written: RefCell::default(),
        descriptor: UnixDatagram::unbound().unwrap(),
    };
    Umad::new(device, options).unwrap()
}

#[test]
fn smps_leave_and_return_by_their_planes_and_the_rest_by_the_port_for_data() {
    let sysfs = planarized("planar");
    let port = UmadPort::find_at(&sysfs.0, Some("smi1"), None).unwrap();
    let HostPort::Planar { gsi, planes } = port.with_planes().unwrap() else { panic!("planes") };
    let options = PlanarOptions::subnet_manager(gsi, planes, Duration::from_millis(100));
    // An SMP waits in plane 3; agent 0 is that of directed routes.
    let smp = |plane: u64| {
        let mut record = request(plane, |header| _ = header.set_lid(0xFFFF));
        MadHeader::new(&mut record[HEADER_LEN..])
            .unwrap()
            .set_mgmt_class(MgmtClass::SUBN_DIRECTED_ROUTE)
            .set_tid(plane);
        record
    };
    let of_plane = |options: &UmadOptions| {
        let waiting = if options.port.num == PortNum(3) { vec![Ok(smp(3))] } else { Vec::new() };
        scripted(options, waiting)
    };
    let gsi = scripted(&options.gsi, Vec::new());
    let mut planar = Planar::new(gsi, options.planes.iter().rev().map(of_plane).collect()).unwrap();
    assert_eq!(planar.planes(), [1, 2, 3, 4].map(PortNum));
    let mut batch = vec![Packet::default(); 4];
    assert_eq!(planar.receive(&mut batch).unwrap(), 1);
    assert_eq!(batch[0].carrier.plane, PortNum(3));

    let written = |planar: &Planar<Scripted>| -> Vec<usize> {
        let files = planar.planes.iter().chain([&planar.gsi]);
        files.map(|umad| umad.device.written.borrow().len()).collect()
    };
    // The answer goes back where the request came from, and one without a plane by the first.
    let mut other = batch[0].clone();
    other.carrier.plane = PortNum(0);
    let mut query = Packet::to(Address::gsi(Lid(1)));
    MadHeader::of_mut(&mut query.mad).set_mgmt_class(MgmtClass::SUBN_ADM).set_method(Method::GET);
    query.address.pkey = PKey(0x7FFF);
    let sent = planar.send(&[batch[0].clone(), other, query]).unwrap();
    assert_eq!((sent, written(&planar)), (3, vec![1, 0, 1, 0, 1]));
    assert_eq!(planar.refused(), (0, 0));
}
