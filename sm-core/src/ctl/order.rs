//! `ibsmctl sweep` and `ibsmctl reroute`: what the master is told to do.

use sa_proto::proto::admin::{RerouteRequest, SweepRequest};

use super::{CtlError, Sm};

/// Has a heavy sweep made.
pub(super) async fn sweep(sm: &Sm) -> Result<String, CtlError> {
    let answer = sm.connect().await?.sweep(SweepRequest {}).await;
    answer.map_err(|status| sm.refused(&status))?;
    Ok("a heavy sweep begins within a second; its log tells what comes of it\n".into())
}

/// Has all routes made anew.
pub(super) async fn reroute(sm: &Sm) -> Result<String, CtlError> {
    let answer = sm.connect().await?.reroute(RerouteRequest {}).await;
    answer.map_err(|status| sm.refused(&status))?;
    Ok("all routes are made anew by a heavy sweep, which begins within a second\n".into())
}
