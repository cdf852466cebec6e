//! The attribute and method of a request as one small number, used as a counter index.

use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::sa::{attribute, method};

/// Methods that are counted separately: those of requests, and one for all others.
const METHODS: usize = method::REQUESTS.len() + 1;
/// Attributes that are counted separately: those of the class, and one for all others.
const ATTRIBUTES: usize = attribute::ALL.len() + 1;
/// Subject of a request: attribute and method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject(pub(super) u8);

impl Subject {
    /// Packets that are not requests of the class.
    pub const NONE: Self = Self(Self::COUNT as u8 - 1);

    pub(super) const COUNT: usize = ATTRIBUTES * METHODS;

    /// The subject of a request.
    #[inline]
    pub fn of(attribute: AttributeId, method: Method) -> Self {
        let attribute = usize::from(attribute.0).min(BY_ATTRIBUTE.len() - 1);
        Self(BY_ATTRIBUTE[attribute] + BY_METHOD[usize::from(method.0)])
    }

    /// All subjects.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// The attribute; none if it is none of the class.
    pub fn attribute_id(self) -> Option<AttributeId> {
        attribute::ALL.get(usize::from(self.0) / METHODS).copied()
    }

    /// Name of the attribute as a metric label.
    pub fn attribute(self) -> &'static str {
        self.attribute_id().and_then(attribute::name).unwrap_or("other")
    }

    /// Whether it is answered from tables, not by the SM.
    pub fn is_query(self) -> bool {
        let method = self.method_row().map(|&(method, _)| method);
        matches!(method, Some(Method::GET | Method::GET_TABLE | Method::GET_MULTI))
    }

    /// Name of the method as a metric label.
    pub fn method(self) -> &'static str {
        self.method_row().map_or(method::OTHER, |&(_, label)| label)
    }

    fn method_row(self) -> Option<&'static (Method, &'static str)> {
        method::REQUESTS.get(usize::from(self.0) % METHODS)
    }
}

/// The first subject of each attribute, in the order of `attribute::ALL`; of those that it does not
/// have, behind it.
static BY_ATTRIBUTE: [u8; 257] = {
    let mut places = [((ATTRIBUTES - 1) * METHODS) as u8; 257];
    let mut i = 0;
    while i < attribute::ALL.len() {
        places[attribute::ALL[i].0 as usize] = (i * METHODS) as u8;
        i += 1;
    }
    places
};

/// The place of each method in `method::REQUESTS`; of all others, the one behind it.
static BY_METHOD: [u8; 256] = {
    let mut places = [method::REQUESTS.len() as u8; 256];
    let mut i = 0;
    while i < method::REQUESTS.len() {
        places[method::REQUESTS[i].0.0 as usize] = i as u8;
        i += 1;
    }
    places
};
