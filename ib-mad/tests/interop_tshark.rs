//! Captures read by tshark, an independent decoder.

#![cfg(feature = "transport")]

#[path = "skip/mod.rs"]
mod skip;

use std::path::PathBuf;
use std::process::Command;

use ib_mad::transport::capture::Capture;
use ib_mad::transport::memory::{Faults, Network};
use ib_mad::transport::{Address, Grh, Packet, Transport};
use ib_mad::types::{Gid, Guid, Lid, Lifetime, Mtu, PKey, PortNum, Rate, Sl};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::path::component;
use ib_mad::wire::record::{PathRecord, PathRecordRepr, Selector};
use ib_mad::wire::sa::{SaMad, attribute};
use ib_mad::wire::smp;
use skip::skip;

const PREFIX: u64 = 0xFE80_0000_0000_0000;

/// A file that is removed with the test.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Captures `batch` as sent by LID 3, and the responses that `answer` derives. Returns tshark's
/// output; `None` if tshark is missing.
fn dissect(name: &str, batch: &mut [Packet], answer: impl Fn(&mut Packet)) -> Option<String> {
    let file =
        File(std::env::temp_dir().join(format!("ib-mad-{name}-{}.pcap", std::process::id())));
    let network = Network::new(1, Faults::NONE);
    let mut far = network.endpoint(Lid(7), 0);
    let mut near = Capture::create(network.endpoint(Lid(3), 0), &file.0, u64::MAX).unwrap();
    near.send(batch).unwrap();
    let arrived = far.receive(batch).unwrap();
    batch[..arrived].iter_mut().for_each(answer);
    far.send(&batch[..arrived]).unwrap();
    near.receive(batch).unwrap();
    drop(near);

    match Command::new("tshark").arg("-V").arg("-r").arg(&file.0).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(text)
        }
        Err(error) => {
            skip(format_args!("tshark does not run: {error}"));
            None
        }
    }
}

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    assert!(!text.contains("Malformed"), "{text}");
    for line in lines {
        assert!(text.lines().any(|l| l.trim() == *line), "no line '{line}' in\n{text}");
    }
}

/// IBA 14.2.1.2.
#[test]
fn a_directed_route_smp_reads_the_same_to_tshark() {
    let address = Address::smi(Lid::PERMISSIVE);
    let mut packet = Packet::to(address);
    smp::Request {
        method: Method::GET,
        attribute_id: AttributeId::NODE_INFO,
        attribute_modifier: 0,
        tid: 0x1234_5678_9ABC_DEF0,
        m_key: 0x0102_0304_0506_0708,
    }
    .write_directed(&mut packet.mad, &[PortNum(1), PortNum(17), PortNum(4)])
    .unwrap();
    let Some(text) = dissect("smp", &mut [packet], |_| {}) else { return };
    assert_lines(
        &text,
        &[
            "1111 .... = Virtual Lane: 0xf",
            "Destination Local ID: 65535",
            "Source Local ID: 65535",
            "Destination Queue Pair: 0x000000",
            "SMP (Directed Route) SubnGet(NodeInfo)",
            "Transaction ID: 0x123456789abcdef0",
            "Hop Pointer: 0x00",
            "Hop Count: 0x03",
            "M_Key: 0x0102030405060708",
            "DrSLID: 0xffff",
            "DrDLID: 0xffff",
            "Invariant CRC: 0x00000000",
        ],
    );
    assert!(text.contains("Initial Path: 0001110400"), "{text}");
}

/// IBA 15.2.5.16.
#[test]
fn a_path_record_query_and_its_answer_read_the_same_to_tshark() {
    let [source, destination] =
        [1, 2].map(|guid| Gid::new(PREFIX, Guid(0x0002_C903_0000_0000 + guid)));
    let query = PathRecordRepr {
        service_id: 0,
        dgid: destination,
        sgid: source,
        dlid: Lid::NONE,
        slid: Lid::NONE,
        raw_traffic: false,
        flow_label: 0,
        hop_limit: 0,
        tclass: 0,
        reversible: true,
        numb_path: 1,
        pkey: PKey::DEFAULT_FULL,
        qos_class: 0,
        sl: Sl::default(),
        mtu_selector: Selector::Exactly,
        mtu: Mtu::B4096,
        rate_selector: Selector::Exactly,
        rate: Rate::Gbps100,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: Lifetime::from_low_bits(18),
        preference: 0,
    };
    let grh = Grh { remote_gid: destination, local_gid: source, hop_limit: 64, ..Grh::default() };
    let address = Address { lid: Lid(7), grh: Some(grh), ..Address::default() };
    let mut packet = Packet::to(address);
    let mask = component::DGID | component::SGID | component::NUMB_PATH | component::PKEY;
    let mut request = SaMad::new(&mut packet.mad);
    request.write_request(Method::GET, attribute::PATH_RECORD, 0x0000_0001_0000_0042, mask);
    query.emit(&mut PathRecord::new(&mut request.data_mut()[..]).unwrap());
    let found = PathRecordRepr {
        dlid: Lid(0x0302),
        slid: Lid(0x0100),
        sl: Sl::from_low_bits(3),
        ..query.clone()
    };
    let text = dissect("path", &mut [packet], |packet| {
        let mut answer = SaMad::new(&mut packet.mad);
        answer.make_response(Status::OK);
        found.emit(&mut PathRecord::new(&mut answer.data_mut()[..]).unwrap());
    });
    let Some(text) = text else { return };
    let (request, answer) = text.split_once("Frame 2:").expect("two packets");
    assert_lines(
        request,
        &[
            "Destination Local ID: 7",
            "Source Local ID: 3",
            "Source GID: fe80::2:c903:0:1",
            "Destination GID: fe80::2:c903:0:2",
            "Hop Limit: 64",
            "Queue Key: 0x0000000080010000",
            "SA SubnAdmGet(PathRecord)",
            "Component Mask: 0x000000000000300c",
            "SGID: fe80::2:c903:0:1",
            ".000 0001 = NumbPath: 0x01",
            "DLID: 0x0000",
        ],
    );
    assert_lines(
        answer,
        &[
            "Destination Local ID: 3",
            "Source Local ID: 7",
            "Source GID: fe80::2:c903:0:2",
            "Status: 0x0000",
            "Transaction ID: 0x0000000100000042",
            "SA SubnAdmGetResp(PathRecord)",
            "DGID: fe80::2:c903:0:2",
            "DLID: 0x0302",
            "SLID: 0x0100",
            "1... .... = Reversible: 0x1",
            "P_Key: 0xffff",
            ".... .... .... 0011 = SL: 0x3",
            "..00 0101 = MTU: 0x05",
            "..01 0000 = Rate: 0x10",
            "..01 0010 = PacketLifeTime: 0x12",
        ],
    );
}
