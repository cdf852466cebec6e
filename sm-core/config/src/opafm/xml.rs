//! Parses XML into a tree of elements with line numbers.

use quick_xml::Reader;
use quick_xml::events::Event;

use super::Reason;

/// A line number, from 1, and the error there.
pub(super) type Fault = (usize, Reason);

/// Deepest nesting of elements.
const DEPTH_MAX: usize = 64;
/// Largest number of elements in a file.
const ELEMENTS_MAX: usize = 1 << 20;

/// An element.
#[derive(Debug, Default)]
pub(super) struct Element {
    /// Its name.
    pub(super) name: String,
    /// Line of its start tag.
    pub(super) line: usize,
    /// Text in it, trimmed.
    pub(super) text: String,
    /// Child elements.
    pub(super) children: Vec<Element>,
}

impl Element {
    /// Its child elements with that name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// Parses a document; returns its outermost element.
pub(super) fn parse(text: &str) -> Result<Element, Fault> {
    let mut reader = Reader::from_str(text);
    let mut lines = Lines::new(text);
    let mut open: Vec<Element> = vec![Element::default()];
    let mut count = 0;
    loop {
        let line = lines.at(reader.buffer_position() as usize);
        let event = reader.read_event().map_err(|error| {
            (Lines::new(text).at(reader.error_position() as usize), Reason::Xml(said(&error)))
        })?;
        let Some(top) = open.last_mut() else { break };
        match event {
            Event::Start(tag) => {
                count += 1;
                if count > ELEMENTS_MAX || open.len() > DEPTH_MAX {
                    let limit = "too many elements, or nested too deeply";
                    return Err((line, Reason::Xml(limit.to_owned())));
                }
                let name = tag.name().as_ref().to_owned();
                open.push(Element { name, line, ..Element::default() });
            }
            Event::Empty(tag) => {
                let name = tag.name().as_ref().to_owned();
                top.children.push(Element { name, line, ..Element::default() });
            }
            Event::End(_) => {
                let Some(mut element) = open.pop() else { break };
                element.text = element.text.trim().to_owned();
                let Some(parent) = open.last_mut() else { break };
                parent.children.push(element);
            }
            Event::Text(piece) => top.text.push_str(&piece),
            Event::CData(piece) => top.text.push_str(&piece),
            Event::GeneralRef(reference) => {
                let name = reference.to_string();
                let known = match reference.resolve_char_ref() {
                    Ok(Some(character)) => Some(character.to_string()),
                    _ => quick_xml::escape::resolve_predefined_entity(&name).map(str::to_owned),
                };
                let known = known
                    .ok_or_else(|| (line, Reason::Xml(format!("unknown entity '&{name};'"))))?;
                top.text.push_str(&known);
            }
            Event::Eof => break,
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
    let unclosed = open.len().checked_sub(2).and_then(|_| open.pop());
    if let Some(element) = unclosed {
        let text = format!("<{}> is never closed", element.name);
        return Err((element.line, Reason::Xml(text)));
    }
    let mut document = open.pop().unwrap_or_default();
    match document.children.pop() {
        Some(root) if document.children.is_empty() => Ok(root),
        Some(second) => Err((second.line, Reason::Xml("a second outermost element".to_owned()))),
        None => Err((1, Reason::Xml("no element at all".to_owned()))),
    }
}

/// The text of an error, without the prefix that [`Reason::Xml`] adds.
fn said(error: &quick_xml::Error) -> String {
    match error {
        quick_xml::Error::IllFormed(inner) => inner.to_string(),
        quick_xml::Error::Syntax(inner) => inner.to_string(),
        other => other.to_string(),
    }
}

/// Line numbers by offset, for ascending offsets.
struct Lines<'a> {
    text: &'a [u8],
    offset: usize,
    line: usize,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        Self { text: text.as_bytes(), offset: 0, line: 1 }
    }

    fn at(&mut self, offset: usize) -> usize {
        let end = offset.clamp(self.offset, self.text.len());
        self.line += self.text[self.offset..end].iter().filter(|&&byte| byte == b'\n').count();
        self.offset = end;
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_know_their_lines_and_comments_are_no_text() {
        let text = "<?xml version=\"1.0\"?>\n<A>\n <!-- c\n -->\n  <B> x &amp; <!-- y -->z&#33; \
            </B>\n  <C/>\n</A>";
        let root = parse(text).unwrap();
        assert_eq!((root.name.as_str(), root.line), ("A", 2));
        let [b, c] = &root.children[..] else { panic!("{root:?}") };
        assert_eq!((b.text.as_str(), b.line), ("x & z!", 5));
        assert_eq!((c.text.as_str(), c.line), ("", 6));
    }

    #[test]
    fn malformed_xml_is_rejected_with_its_line() {
        for (text, line) in [
            ("", 1),
            ("<A>\n<B></A>", 2),
            ("<A>\n", 1),
            ("<A>\n&what;</A>", 2),
            ("<A/>\n<B/>", 2),
            ("<A>\n<B\n", 2),
        ] {
            let fault = parse(text).expect_err(text);
            assert_eq!(fault.0, line, "{text}: {fault:?}");
            assert!(matches!(fault.1, Reason::Xml(_)));
        }
        assert!(parse(&"<A>".repeat(100)).is_err());
    }

    #[test]
    fn a_fault_is_stated_once() {
        for text in ["<A>\n<B></A>", "<A>\n<B\n"] {
            let said = parse(text).expect_err(text).1.to_string();
            assert!(said.starts_with("not well-formed: "), "{said}");
            assert!(!said.contains("ill-formed") && !said.contains("syntax error"), "{said}");
        }
    }
}
