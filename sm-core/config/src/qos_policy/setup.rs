//! `qos-setup`: SL2VL and VL arbitration tables by port group. As in OpenSM it is parsed and has no
//! effect; the tables are configured by `qos_*` keys of the configuration file.

use super::cursor::{Cursor, Fault};
use super::place::Place;

const VLARB: &[&str] = &["group", "across", "vlarb-high", "vlarb-low", "vl-high-limit"];
const SL2VL: &[&str] =
    &["group", "across", "across-from", "across-to", "from", "to", "sl2vl-table"];

/// Parses the section up to its end. Checks the form, not the values.
pub(super) fn section(cursor: &mut Cursor<'_>, opened: usize) -> Result<(), Fault> {
    let place = Place::new("qos-setup", &["vlarb-tables", "sl2vl-tables"], opened);
    while let Some(line) = place.next(cursor)? {
        match line.text.as_str() {
            "vlarb-tables" => {
                let tables = Place::new("vlarb-tables", &["vlarb-scope"], line.number);
                scopes(cursor, tables, "vlarb-scope", VLARB)?;
            }
            "sl2vl-tables" => {
                let tables = Place::new("sl2vl-tables", &["sl2vl-scope"], line.number);
                scopes(cursor, tables, "sl2vl-scope", SL2VL)?;
            }
            _ => {
                cursor.note::<()>(Err(place.refuse(&line)))?;
            }
        }
    }
    Ok(())
}

fn scopes(
    cursor: &mut Cursor<'_>,
    tables: Place,
    scope: &'static str,
    keys: &'static [&'static str],
) -> Result<(), Fault> {
    while let Some(opened) = tables.next_of(cursor, scope)? {
        let place = Place::new(scope, keys, opened);
        while place.next_entry(cursor)?.is_some() {}
    }
    Ok(())
}
