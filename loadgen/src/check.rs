//! Checks responses: whether they answer the query, and agree with the snapshot.

use std::fmt;

use ib_mad::types::{Gid, Lid, Mtu, PKey, Rate};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::path::component;
use ib_mad::wire::record::{PathRecord, Selector};
use ib_mad::wire::sa::{DATA_LEN, SaMad};

use crate::fabric::{Expected, Fabric};
use crate::workload::{By, Pair, Workload};

/// How thoroughly responses are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The status only.
    Status,
    /// Also that the record repeats the query's components.
    Echo,
    /// Also that the path is the one in the snapshot.
    Path,
}

/// How thoroughly responses are checked, as users name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// Check only the status.
    None,
    /// Compare the answer with the query.
    Echo,
    /// Compare the answer with the path in the snapshot.
    Path,
}

/// Verdict on a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The requested record, without a known fault.
    Resolved,
    /// Correctly no path; or an empty table.
    NoPath,
    /// An error status, not known to be wrong.
    Error(Status),
    /// Faulty.
    Wrong(Fault),
}

/// Fault of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// An error although a path exists.
    Refused,
    /// A path although none exists.
    Invented,
    /// A different component mask, or components that differ from the query.
    Components,
    /// GIDs of other ports.
    Gids,
    /// LIDs of other ports.
    Lids,
    /// A P_Key other than requested, or one that the ports do not share.
    PKey,
    /// Wrong MTU, or a reserved code.
    Mtu,
    /// Wrong rate, or a reserved code.
    Rate,
    /// A selector other than "exactly", or the reversible bit not set.
    Form,
    /// A method or attribute that does not belong to the response.
    Attribute,
    /// A record about something other than requested.
    Record,
}

impl Fault {
    /// All faults, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Refused,
        Self::Invented,
        Self::Components,
        Self::Gids,
        Self::Lids,
        Self::PKey,
        Self::Mtu,
        Self::Rate,
        Self::Form,
        Self::Attribute,
        Self::Record,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "error status although a path exists",
            Self::Invented => "a path although none exists",
            Self::Components => "components that differ from the query",
            Self::Gids => "GID of another port",
            Self::Lids => "LID of another port",
            Self::PKey => "P_Key that the ports do not share",
            Self::Mtu => "wrong MTU",
            Self::Rate => "wrong rate",
            Self::Form => "wrong selectors or reversible bit",
            Self::Attribute => "answer to another request",
            Self::Record => "record of another port or group",
        })
    }
}

/// Checks responses.
pub struct Checker<'a> {
    /// The requests' pairs.
    pub workload: &'a Workload,
    /// The fabric, if known.
    pub fabric: Option<&'a Fabric>,
    /// How thoroughly to check.
    pub level: Level,
}

impl Checker<'_> {
    /// Checks a response to the query for `pair`.
    #[inline]
    pub fn check(&self, pair: &Pair, by: By, mad: &[u8; MAD_LEN]) -> Verdict {
        let answer = SaMad::new(mad);
        let status = answer.header().status();
        let mut expected = pair.expected.filter(|_| self.level >= Level::Path);
        if status == Status::SA_NO_RECORDS && expected.is_none() && self.level >= Level::Path {
            // A pair outside the sample: rare enough to compute its path now.
            let asked = by.names(component::PKEY).then(|| self.workload.pkey());
            let walk = |fabric: &Fabric| fabric.expect(pair.source, pair.destination, asked);
            expected = self.fabric.map(walk);
        }
        match (status, expected) {
            (Status::OK, Some(Expected::NoPath)) => return Verdict::Wrong(Fault::Invented),
            (Status::OK, _) => {}
            (Status::SA_NO_RECORDS, Some(Expected::NoPath)) => return Verdict::NoPath,
            (_, Some(Expected::Path { .. })) => return Verdict::Wrong(Fault::Refused),
            (status, _) => return Verdict::Error(status),
        }
        if self.level == Level::Status {
            return Verdict::Resolved;
        }
        let record = PathRecord::of(answer.data());
        let fault = self
            .echo(pair, by, &record)
            .or_else(|| expected.and_then(|expected| self.path(pair, expected, &record)));
        match fault {
            None if answer.sa().component_mask() != by.component_mask() => {
                Verdict::Wrong(Fault::Components)
            }
            None => Verdict::Resolved,
            Some(fault) => Verdict::Wrong(fault),
        }
    }

    /// Whether the record is for the requested ports, and well-formed.
    #[inline]
    fn echo(&self, pair: &Pair, by: By, record: &PathRecord<&[u8; DATA_LEN]>) -> Option<Fault> {
        let ports = self.workload.ports();
        let (source, destination) = (ports.get(pair.source), ports.get(pair.destination));
        let gid_differs = |known: Gid, said: Gid| known != Gid::ZERO && known != said;
        if gid_differs(source.gid, record.sgid()) || gid_differs(destination.gid, record.dgid()) {
            return Some(Fault::Gids);
        }
        let by_lid = by.names(component::DLID | component::SLID);
        let lid_fits = |port: &crate::ports::EndPort, said: Lid| match port.lid {
            Lid::NONE => said.is_unicast(),
            lid if by_lid => said == lid,
            _ => port.has_lid(said),
        };
        if !lid_fits(source, record.slid()) || !lid_fits(destination, record.dlid()) {
            return Some(Fault::Lids);
        }
        let asked = by.names(component::PKEY).then(|| self.workload.pkey());
        if asked.is_some_and(|asked| asked.base() != record.pkey().base())
            || !record.pkey().is_valid()
        {
            return Some(Fault::PKey);
        }
        let exact = Selector::Exactly;
        if record.mtu_selector() != exact
            || record.rate_selector() != exact
            || record.packet_life_time_selector() != exact
            || !record.reversible()
        {
            return Some(Fault::Form);
        }
        if Mtu::from_code(record.mtu()).is_none() {
            return Some(Fault::Mtu);
        }
        Rate::from_code(record.rate()).is_none().then_some(Fault::Rate)
    }

    /// Whether the record has the MTU and rate of the computed path.
    #[inline]
    fn path(
        &self,
        pair: &Pair,
        expected: Expected,
        record: &PathRecord<&[u8; DATA_LEN]>,
    ) -> Option<Fault> {
        let Expected::Path { mtu, rate } = expected else { return Some(Fault::Invented) };
        let may_use = |pkey: PKey| {
            self.fabric.is_none_or(|fabric| fabric.may_use(pair.source, pair.destination, pkey))
        };
        if !may_use(record.pkey()) {
            return Some(Fault::PKey);
        }
        if record.mtu() != mtu.code() {
            return Some(Fault::Mtu);
        }
        let said = Rate::from_code(record.rate())?;
        let fits = said == rate || said < rate && is_newer_code(rate);
        (!fits).then_some(Fault::Rate)
    }
}

/// Whether some ports do not support this rate code and are given a lower one.
fn is_newer_code(rate: Rate) -> bool {
    matches!(
        rate,
        Rate::Gbps28
            | Rate::Gbps50
            | Rate::Gbps400
            | Rate::Gbps600
            | Rate::Gbps800
            | Rate::Gbps1200
    )
}

/// Formats the path of a response.
pub fn describe(workload: &Workload, pair: &Pair, mad: &[u8; MAD_LEN]) -> String {
    let (source, destination) =
        (workload.ports().name(pair.source), workload.ports().name(pair.destination));
    let answer = SaMad::new(mad);
    match answer.header().status() {
        Status::OK => {}
        status => return format!("{source} → {destination}: {status}"),
    }
    let record = PathRecord::of(answer.data());
    let mtu = Mtu::from_code(record.mtu())
        .map_or_else(|| format!("code {}", record.mtu()), |mtu| mtu.to_string());
    let rate = Rate::from_code(record.rate())
        .map_or_else(|| format!("rate code {}", record.rate()), |rate| rate.to_string());
    format!(
        "{source} LID {} → {destination} LID {}: SL {}, MTU {mtu}, {rate}, P_Key {}",
        record.slid(),
        record.dlid(),
        record.sl(),
        record.pkey(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric;
    use crate::workload::{Draw, WorkloadOptions};
    use ib_mad::types::{Lifetime, Sl};
    use ib_mad::wire::record::PathRecordRepr;
    use std::sync::Arc;

    struct Bed {
        fabric: Fabric,
        workload: Workload,
        pair: Pair,
    }

    /// Host a asks for host b: LIDs 1 and 2, MTU 2048, 40 Gb/s.
    fn bed(by: By) -> Bed {
        let fabric = Fabric::new(Arc::new(fabric::tests::plane()));
        let options = WorkloadOptions {
            by,
            draw: Draw::Any(1),
            seed: 1,
            service_id: 7,
            pkey: PKey::DEFAULT_FULL,
            sample: 1.0,
        };
        let workload = Workload::draw(&options, fabric.ports().clone(), Some(&fabric)).unwrap();
        let expected = Some(fabric.expect(0, 1, None));
        Bed { fabric, workload, pair: Pair { source: 0, destination: 1, expected } }
    }

    impl Bed {
        fn answer(&self, change: impl FnOnce(&mut PathRecordRepr)) -> [u8; MAD_LEN] {
            let ports = self.workload.ports();
            let mut mad = [0; MAD_LEN];
            self.workload.write_request(&self.pair, self.workload.by(), 1, &mut mad);
            let mut record = PathRecordRepr {
                service_id: 0,
                dgid: ports.get(1).gid,
                sgid: ports.get(0).gid,
                dlid: Lid(2),
                slid: Lid(1),
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
                mtu: Mtu::B2048,
                rate_selector: Selector::Exactly,
                rate: Rate::Gbps40,
                packet_life_time_selector: Selector::Exactly,
                packet_life_time: Lifetime::from_low_bits(18),
                preference: 0,
            };
            change(&mut record);
            let mut answer = SaMad::new(&mut mad);
            answer.make_response(Status::OK);
            record.emit(&mut PathRecord::new(&mut answer.data_mut()[..]).unwrap());
            mad
        }

        fn check(&self, level: Level, mad: &[u8; MAD_LEN]) -> Verdict {
            let Self { workload, fabric, pair } = self;
            Checker { workload, fabric: Some(fabric), level }.check(pair, workload.by(), mad)
        }
    }

    #[test]
    fn a_right_answer_is_resolved() {
        for by in By::ALL {
            let bed = bed(by);
            let answer = bed.answer(|_| {});
            assert_eq!(bed.check(Level::Path, &answer), Verdict::Resolved);
        }
    }

    #[test]
    fn every_wrong_field_is_found() {
        let bed = bed(By::GidService);
        type Change = fn(&mut PathRecordRepr);
        let wrong: [(Change, Fault); 10] = [
            (|record| record.dgid = Gid([1; 16]), Fault::Gids),
            (|record| record.sgid = record.dgid, Fault::Gids),
            (|record| record.dlid = Lid(3), Fault::Lids),
            (|record| record.slid = Lid(2), Fault::Lids),
            (|record| record.pkey = PKey(0x8001), Fault::PKey),
            (|record| record.mtu = Mtu::B4096, Fault::Mtu),
            (|record| record.rate = Rate::Gbps56, Fault::Rate),
            (|record| record.rate = Rate::Gbps20, Fault::Rate),
            (|record| record.mtu_selector = Selector::Greater, Fault::Form),
            (|record| record.reversible = false, Fault::Form),
        ];
        for (change, fault) in wrong {
            let answer = bed.answer(change);
            assert_eq!(bed.check(Level::Path, &answer), Verdict::Wrong(fault));
        }
        let mut answer = bed.answer(|_| {});
        answer[54] ^= 1;
        assert_eq!(bed.check(Level::Path, &answer), Verdict::Wrong(Fault::Components));
    }

    #[test]
    fn each_level_looks_as_far_as_it_says() {
        let bed = bed(By::Gid);
        let slow = bed.answer(|record| record.mtu = Mtu::B256);
        assert_eq!(bed.check(Level::Echo, &slow), Verdict::Resolved);
        let astray = bed.answer(|record| record.dlid = Lid(9));
        assert_eq!(bed.check(Level::Echo, &astray), Verdict::Wrong(Fault::Lids));
        assert_eq!(bed.check(Level::Status, &astray), Verdict::Resolved);
    }

    #[test]
    fn errors_are_wrong_only_where_a_path_is_known() {
        let mut bed = bed(By::Gid);
        let path = bed.answer(|_| {});
        let mut answer = path;
        SaMad::new(&mut answer).header_mut().set_status(Status::SA_NO_RECORDS);
        assert_eq!(bed.check(Level::Path, &answer), Verdict::Wrong(Fault::Refused));
        assert_eq!(bed.check(Level::Echo, &answer), Verdict::Error(Status::SA_NO_RECORDS));
        bed.pair.expected = Some(Expected::NoPath);
        assert_eq!(bed.check(Level::Path, &answer), Verdict::NoPath);
        assert_eq!(bed.check(Level::Path, &path), Verdict::Wrong(Fault::Invented));
    }

    #[test]
    fn paths_are_described_in_words() {
        let bed = bed(By::Gid);
        assert_eq!(
            describe(&bed.workload, &bed.pair, &bed.answer(|_| {})),
            "a LID 1 → b LID 2: SL 0, MTU 2048, 40 Gb/s, P_Key 0xffff"
        );
    }
}
