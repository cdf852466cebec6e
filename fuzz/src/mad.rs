//! Target for one MAD: dissects it, advances it along its route, and parses it with every layout.

use ib_mad::dissect;
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::*;
use ib_mad::wire::field::part;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::*;
use ib_mad::wire::sa::SaMad;
use ib_mad::wire::smp::{self, Request};
use ib_mad::wire::{MAD_LEN, attribute, record};

use crate::golden;

/// Parses bytes as a layout; an accepted value must be the same after it is written and parsed
/// again.
macro_rules! check_round_trips {
    ($bytes:expr, $( $view:ident => $repr:ident ),* $(,)?) => {$(
        if let Ok(view) = $view::new($bytes) {
            assert_eq!(view.as_bytes().len(), $view::LEN);
            if let Ok(repr) = $repr::parse(&view) {
                let bytes = repr.to_bytes();
                let again = $view::new(&bytes[..]).expect("as long as the layout");
                assert_eq!($repr::parse(&again).as_ref(), Ok(&repr));
            }
        }
    )*};
}

/// The target: byte 0 selects how the rest is parsed, the rest is the MAD.
pub fn run(input: &[u8]) {
    let Some((&how, bytes)) = input.split_first() else { return };
    assert!(dissect::dissect(bytes).starts_with(&dissect::summary(bytes)));
    check_attributes(bytes);
    check_records(bytes);
    let Some(mad) = bytes.first_chunk::<MAD_LEN>() else { return };
    check_attributes(&mad[smp::DATA]);
    check_records(SaMad::new(mad).data());
    check_tables(part::<{ smp::DATA.start }, _, _>(mad));
    let sa_mad = SaMad::new(mad);
    let request = MultiPathRecord::new(sa_mad.data()).expect("24 bytes of 200");
    if let Some((sources, destinations)) = request.gids() {
        assert!(sources.chain(destinations).count() <= 11);
    }

    let mut passing = *mad;
    for hop in 0..=smp::HOPS_MAX as u8 + 2 {
        let arrived_by = (hop != 0 || how & 1 != 0).then_some(PortNum(hop));
        match smp::step(&mut passing, arrived_by, how & 2 != 0) {
            smp::Step::Forward(_) => continue,
            smp::Step::Agent => smp::answer(&mut passing, Status::OK),
            _ => break,
        }
    }
}

fn check_attributes(bytes: &[u8]) {
    check_round_trips!(bytes,
        NodeInfo => NodeInfoRepr, NodeDescription => NodeDescriptionRepr,
        PortInfo => PortInfoRepr, SwitchInfo => SwitchInfoRepr, GuidInfo => GuidInfoRepr,
        PKeyTable => PKeyTableRepr, SlToVlMappingTable => SlToVlMappingTableRepr,
        VlArbitrationTable => VlArbitrationTableRepr,
        LinearForwardingTable => LinearForwardingTableRepr,
        RandomForwardingTable => RandomForwardingTableRepr,
        MulticastForwardingTable => MulticastForwardingTableRepr, SmInfo => SmInfoRepr,
        LedInfo => LedInfoRepr, VendorDiag => VendorDiagRepr, RouterInfo => RouterInfoRepr,
        MlnxExtPortInfo => MlnxExtPortInfoRepr, ClassPortInfo => ClassPortInfoRepr,
        InformInfo => InformInfoRepr, Notice => NoticeRepr, SmNotice => SmNoticeRepr,
        GidDetails => GidDetailsRepr, LinkStateDetails => LinkStateDetailsRepr,
        PortErrorDetails => PortErrorDetailsRepr, LocalChangesDetails => LocalChangesDetailsRepr,
        SystemImageGuidDetails => SystemImageGuidDetailsRepr, BadMKeyDetails => BadMKeyDetailsRepr,
        BadKeyDetails => BadKeyDetailsRepr,
        BadPKeySwitchPortDetails => BadPKeySwitchPortDetailsRepr,
    );
}

fn check_records(bytes: &[u8]) {
    check_round_trips!(bytes,
        NodeRecord => NodeRecordRepr, PortInfoRecord => PortInfoRecordRepr,
        SlToVlMappingTableRecord => SlToVlMappingTableRecordRepr,
        SwitchInfoRecord => SwitchInfoRecordRepr,
        LinearForwardingTableRecord => LinearForwardingTableRecordRepr,
        RandomForwardingTableRecord => RandomForwardingTableRecordRepr,
        MulticastForwardingTableRecord => MulticastForwardingTableRecordRepr,
        SmInfoRecord => SmInfoRecordRepr, LinkRecord => LinkRecordRepr,
        GuidInfoRecord => GuidInfoRecordRepr, ServiceRecord => ServiceRecordRepr,
        PKeyTableRecord => PKeyTableRecordRepr, PathRecord => PathRecordRepr,
        VlArbitrationTableRecord => VlArbitrationTableRecordRepr,
        McMemberRecord => McMemberRecordRepr, TraceRecord => TraceRecordRepr,
        MultiPathRecord => MultiPathRecordRepr,
        ServiceAssociationRecord => ServiceAssociationRecordRepr,
        InformInfoRecord => InformInfoRecordRepr,
    );
}

/// Every entry of every table can be read.
fn check_tables(bytes: &[u8; smp::SMP_DATA_LEN]) {
    let pkeys = PKeyTable::of(bytes);
    assert_eq!(pkeys.pkeys().count(), PKEYS_PER_BLOCK);
    let guids = GuidInfo::of(bytes);
    let arbitration = VlArbitrationTable::of(bytes);
    let random = RandomForwardingTable::of(bytes);
    let multicast = MulticastForwardingTable::of(bytes);
    assert!((0..GUIDS_PER_BLOCK).filter(|&i| guids.guid(i) == Guid(0)).count() <= GUIDS_PER_BLOCK);
    assert!((0..VL_ARB_PER_BLOCK).all(|i| arbitration.entry(i).vl.get() < 16));
    assert!((0..RFT_BLOCK_LEN).all(|i| random.entry(i).lmc < 8));
    let ports = (0..MFT_BLOCK_LEN).map(|i| multicast.port_mask(i).count_ones()).sum::<u32>();
    assert_eq!(ports, bytes.iter().map(|byte| byte.count_ones()).sum::<u32>());
    let port = PortInfo::of(bytes);
    if let Some(rate) = port.active_rate(port.capability_mask()) {
        assert!(rate.mbps() > 0);
    }
    let text = NodeDescriptionRepr::parse(&NodeDescription::of(bytes));
    drop(text.expect("any bytes describe a node").text().into_owned());
}

/// Recorded SA requests, and an SMP of every attribute on a route of three hops.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = golden::requests();
    let known = |id: &AttributeId| attribute::layout_of(*id).or(record::layout_of(*id)).is_some();
    for attribute_id in (0..=u16::MAX).map(AttributeId).filter(known) {
        let request =
            Request { method: Method::GET, attribute_id, attribute_modifier: 1, tid: 1, m_key: 1 };
        let mut mad = [0; MAD_LEN];
        request.write_directed(&mut mad, &[1, 2, 3].map(PortNum)).expect("three hops");
        seeds.push(mad.to_vec());
        request.write_lid_routed(&mut mad);
        seeds.push(mad.to_vec());
    }
    seeds.iter_mut().for_each(|seed| seed.insert(0, 3));
    seeds
}
