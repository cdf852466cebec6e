//! Queries against a plain reference: every record of a small world, filtered field by field.
//!
//! Of each type that is served from tables or from the registry, requests with any components,
//! filled in as some record has them or otherwise, must find exactly what the reference finds.

use crate::common::SM_KEY;
use crate::golden_support::{Got, Sa};
use crate::oracle::records;
use crate::oracle::world::{Dice, World};
use crate::oracle::{Request, TYPES, expected, request};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::{layout_of, stride};
use ib_mad::wire::sa::{SaMad, attribute};
use proptest::prelude::*;

/// Status, and records sorted, as the responder answers.
fn asked(sa: &mut Sa, world: &World, request: &Request, method: Method) -> (Status, Vec<Vec<u8>>) {
    let mut mad = [0; 256];
    let mut view = SaMad::new(&mut mad);
    view.write_request(method, request.id, 7, request.mask);
    view.sa_mut().set_sm_key(if request.trusted { SM_KEY } else { 0 });
    mad[56..].copy_from_slice(&request.bytes);
    let lids = records::end_port(world, request.requester).unwrap().lids;
    let got = sa.ask(Lid(lids.start as u16), &[mad.to_vec()]);
    let Got::Answer(answer) = got else { panic!("{got:?} for {:?}", request.id) };
    let status = Status(u16::from_be_bytes([answer[4], answer[5]]));
    let len = layout_of(request.id).unwrap().len;
    let mut records: Vec<Vec<u8>> = match (status, method) {
        (Status::OK, Method::GET) => vec![answer[56..56 + len].to_vec()],
        (Status::OK, _) => {
            answer[56..].chunks_exact(stride(len)).map(|record| record[..len].to_vec()).collect()
        }
        _ => Vec::new(),
    };
    records.sort();
    (status, records)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    /// Proves IBA C15-0.1.21, C15-0.1.23.2, C15-0.1.23.4.
    #[test]
    fn queries_find_what_the_reference_finds(seed in any::<u64>()) {
        let world = World::new(seed);
        let mut dice = Dice::new(seed ^ 0x5EED);
        let mut sa = Sa::new(&world.fabric, &world.registry);
        for id in TYPES {
            for _ in 0..12 {
                let request = request(&world, &mut dice, id);
                let context = format!(
                    "{:?} mask {:?} trusted {} from {} about {:02x?}",
                    attribute::name(id), request.mask, request.trusted, request.requester,
                    &request.bytes[..layout_of(id).unwrap().len],
                );
                let want = expected(&world, &request);
                let table = match want.clone() {
                    Ok(records) => (Status::OK, records),
                    Err(status) => (status, Vec::new()),
                };
                prop_assert_eq!(
                    asked(&mut sa, &world, &request, Method::GET_TABLE), table, "{}", context
                );
                let single = match want {
                    Ok(records) if records.is_empty() => (Status::SA_NO_RECORDS, records),
                    // IBA C15-0.1.30.
                    Ok(records) if records.len() > 1 => (Status::SA_TOO_MANY_RECORDS, Vec::new()),
                    Ok(records) => (Status::OK, records),
                    Err(status) => (status, Vec::new()),
                };
                prop_assert_eq!(
                    asked(&mut sa, &world, &request, Method::GET), single, "{}", context
                );
            }
        }
        prop_assert!(sa.stats().balances());
    }
}
