//! Explanations as JSON for operators, and lists of paths.

use ib_mad::types::{Guid, PKey};
use sa_proto::proto::snapshot::explained::Outcome;
use sa_proto::proto::snapshot::{Explain, PathList};

use super::{Explanation, Name, Request, explain};
use crate::node;
use crate::tables::cell::Generation;

/// Bytes of JSON, at most.
const LEN_MAX: usize = 192 * 1024;
/// Maximum number of reported rules that did not match, if all of them would be too long.
const PASSED_OVER_MAX: usize = 200;

/// Explains a path as JSON, or lists the paths of a port.
pub(crate) fn reply(generation: &Generation, question: &Explain) -> Outcome {
    let outcome = if question.list {
        list(generation, question).map(Outcome::Paths)
    } else {
        document(generation, question).map(Outcome::Json)
    };
    outcome.unwrap_or_else(Outcome::Failure)
}

fn list(generation: &Generation, question: &Explain) -> Result<PathList, String> {
    let guid: Guid = question.source.parse().map_err(|_| "the source is no GUID".to_owned())?;
    node::list(generation, guid).ok_or_else(|| format!("there is no port with GUID {guid}"))
}

fn document(generation: &Generation, question: &Explain) -> Result<String, String> {
    let name = |text: &str| match text.parse::<Name>() {
        Ok(name) => name,
    };
    let narrow = |value: Option<u32>, what: &str, max: u32| match value {
        Some(value) if value > max => Err(format!("{what} {value:#x} is above {max:#x}")),
        value => Ok(value.map(|value| value as u16)),
    };
    let request = Request {
        source: name(&question.source),
        destination: name(&question.destination),
        service_id: question.service_id,
        qos_class: narrow(question.qos_class, "QoS class", 0xFFF)?,
        pkey: narrow(question.pkey, "P_Key", 0xFFFF)?.map(PKey),
    };
    let mut explanation = explain(&generation.tables, &generation.registry, &request)
        .map_err(|error| error.to_string())?;
    let text = json(&explanation)?;
    if text.len() <= LEN_MAX {
        return Ok(text);
    }
    // Rules nearest to the one that matched are the most useful.
    let count = explanation.passed_over.len();
    explanation.passed_over.drain(..count.saturating_sub(PASSED_OVER_MAX));
    let text = json(&explanation)?;
    if text.len() <= LEN_MAX {
        return Ok(text);
    }
    Err("the explanation exceeds 192 KiB".to_owned())
}

fn json(explanation: &Explanation) -> Result<String, String> {
    serde_json::to_string(explanation).map_err(|error| error.to_string())
}
