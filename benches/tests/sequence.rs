//! Sequences of requests of every kind against registry and responder in process, as the fuzz
//! target of that name has them, from dice.

#[path = "../../sa-server/tests/it/common/mod.rs"]
mod common;
#[path = "../../sa-server/tests/it/oracle/mod.rs"]
mod oracle;
#[path = "../../fuzz/src/sequence.rs"]
#[allow(dead_code, unreachable_pub, reason = "a target of a crate of its own")]
mod sequence;

use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn requests_in_any_order_keep_the_laws(input in vec(any::<u8>(), 0..4000)) {
        sequence::run(&input);
    }
}
