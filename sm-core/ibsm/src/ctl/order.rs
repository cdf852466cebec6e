//! `ibsmctl sweep` and `ibsmctl reroute`: commands to the master.

use sa_proto::proto::admin::{RerouteRequest, SweepRequest};

use super::{CtlError, Sm};

/// Starts a heavy sweep.
pub(super) async fn sweep(sm: &Sm) -> Result<String, CtlError> {
    let answer = sm.connect().await?.sweep(SweepRequest {}).await;
    answer.map_err(|status| sm.refused(&status))?;
    Ok("a heavy sweep begins within a second; see the log of ibsm for the result\n".into())
}

/// Recomputes all routes.
pub(super) async fn reroute(sm: &Sm) -> Result<String, CtlError> {
    let answer = sm.connect().await?.reroute(RerouteRequest {}).await;
    answer.map_err(|status| sm.refused(&status))?;
    Ok("all routes are recomputed by a heavy sweep, which begins within a second\n".into())
}
