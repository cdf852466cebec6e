//! Metrics of the process from `/proc`, under the names common to Prometheus client libraries.

use std::fmt;

use procfs::WithCurrentSystemInfo;
use procfs::process::{self, LimitValue};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::Family;

/// CPU time, memory, descriptors and start time of this process, read at each scrape. Values that
/// `/proc` does not provide are omitted.
#[derive(Clone, Copy, Debug)]
pub struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(me) = process::Process::myself() else { return Ok(()) };
        if let Ok(stat) = me.stat() {
            let ticks = procfs::ticks_per_second() as f64;
            CPU.counter(&mut encoder)?.of((stat.utime + stat.stime) as f64 / ticks)?;
            RESIDENT.gauge(&mut encoder)?.of(stat.rss_bytes().get())?;
            VIRTUAL.gauge(&mut encoder)?.of(stat.vsize)?;
            THREADS.gauge(&mut encoder)?.of(stat.num_threads as f64)?;
            if let Ok(boot) = procfs::boot_time_secs() {
                START.gauge(&mut encoder)?.of(boot as f64 + stat.starttime as f64 / ticks)?;
            }
        }
        if let Ok(count) = me.fd_count() {
            OPEN_FDS.gauge(&mut encoder)?.of(count)?;
        }
        if let Ok(limits) = me.limits()
            && let LimitValue::Value(max) = limits.max_open_files.soft_limit
        {
            MAX_FDS.gauge(&mut encoder)?.of(max)?;
        }
        Ok(())
    }
}

const CPU: Family = Family::seconds("process_cpu", "CPU time used, user and system");
const RESIDENT: Family = Family::bytes("process_resident_memory", "Resident memory");
const VIRTUAL: Family = Family::bytes("process_virtual_memory", "Virtual memory");
const THREADS: Family = Family::number("process_threads", "Number of threads");
const START: Family = Family::seconds("process_start_time", "Start time since the Unix epoch");
const OPEN_FDS: Family = Family::number("process_open_fds", "Open file descriptors");
const MAX_FDS: Family = Family::number("process_max_fds", "Limit of open file descriptors");
