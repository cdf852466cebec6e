//! The users of the API: a file with a line for each, and what proves who a caller is.
//!
//! A line is `NAME:ROLE:HASH`; `ibsmctl password` writes it. The hash is
//! `scrypt$LOG_N$R$P$SALT$KEY`, salt and key in hexadecimal. Passwords are checked once; what
//! proved right is remembered for a while, since clients send it with each request.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sa_proto::trust::Role;
use scrypt::Params;
use tokio_rustls::rustls::crypto::ring;

/// Parameters of new hashes: 16 MiB, some 50 ms.
const LOG_N: u8 = 14;
const R: u32 = 8;
const P: u32 = 1;
/// Greatest parameters of a hash in the file: 256 MiB.
const LOG_N_MAX: u8 = 18;
const R_P_MAX: u32 = 16;
/// Bytes of a salt, of a key and of a token.
const SALT_LEN: usize = 16;
const KEY_LEN: usize = 32;
const TOKEN_LEN: usize = 32;
/// Users in the file, and its length in bytes.
const USERS_MAX: usize = 1_024;
const FILE_LEN_MAX: u64 = 1 << 20;
/// How long a password that proved right is remembered, and a token or session is valid.
const REMEMBERED: Duration = Duration::from_secs(60);
const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// Tokens and sessions at once, and remembered passwords. The oldest password makes room, and the
/// oldest token of the user who has most.
const TOKENS_MAX: usize = 1_024;

/// Why the file of users cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{path}:{line}: {reason}; a line is NAME:ROLE:HASH, as ibsmctl password prints it")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
}

#[derive(Debug, PartialEq, Eq)]
struct User {
    role: Role,
    hash: Hash,
}

/// A hash of a password.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hash {
    log_n: u8,
    r: u32,
    p: u32,
    salt: Vec<u8>,
    key: Vec<u8>,
}

impl Hash {
    fn read(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('$').collect();
        let ["scrypt", log_n, r, p, salt, key] = parts[..] else { return None };
        let (log_n, r, p) = (log_n.parse().ok()?, r.parse().ok()?, p.parse().ok()?);
        let is_bounded = log_n <= LOG_N_MAX && r <= R_P_MAX && p <= R_P_MAX;
        let hash = Self { log_n, r, p, salt: from_hex(salt)?, key: from_hex(key)? };
        (is_bounded && hash.key.len() == KEY_LEN && Params::new(log_n, r, p).is_ok())
            .then_some(hash)
    }

    fn of(&self, password: &str) -> Option<Vec<u8>> {
        let params = Params::new(self.log_n, self.r, self.p).ok()?;
        let mut key = vec![0; KEY_LEN];
        scrypt::scrypt(password.as_bytes(), &self.salt, &params, &mut key).ok()?;
        Some(key)
    }

    /// Whether this is the password; takes the same time for all of them.
    fn fits(&self, password: &str) -> bool {
        let Some(key) = self.of(password) else { return false };
        let differ = key.iter().zip(&self.key).fold(0, |differ, (a, b)| differ | (a ^ b));
        differ == 0
    }
}

/// A line of the file for a new user; `None` for a name with colons or without characters, and for
/// an empty password.
pub fn line(name: &str, role: Role, password: &str) -> Option<String> {
    if name.is_empty() || name.contains([':', '\n', '\r']) || password.is_empty() {
        return None;
    }
    let hash = Hash { log_n: LOG_N, r: R, p: P, salt: random(SALT_LEN)?, key: Vec::new() };
    let (salt, key) = (to_hex(&hash.salt), to_hex(&hash.of(password)?));
    Some(format!("{name}:{}:scrypt${LOG_N}${R}${P}${salt}${key}", role.name()))
}

fn random(len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    ring::default_provider().secure_random.fill(&mut bytes).ok()?;
    Some(bytes)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// What a caller shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Name and password.
    Password(String, String),
    /// A token or session.
    Token(String),
}

impl Proof {
    /// Whether it has no password or token: it proves nothing, even if the file has an empty one.
    fn is_empty(&self) -> bool {
        match self {
            Self::Password(name, password) => name.is_empty() || password.is_empty(),
            Self::Token(token) => token.is_empty(),
        }
    }

    /// Reads the value of an `Authorization` header: name and password, or a token.
    pub fn of_header(value: &str) -> Option<Self> {
        let (scheme, rest) = value.split_once(' ')?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(Self::Token(rest.to_owned()));
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let decoded = BASE64_STANDARD.decode(rest).ok().and_then(|b| String::from_utf8(b).ok());
        Some(match decoded.as_deref().and_then(|text| text.split_once(':')) {
            Some((name, password)) => Self::Password(name.to_owned(), password.to_owned()),
            None => Self::Token(rest.to_owned()),
        })
    }
}

/// A user who proved to be one. What the file says of the user is as of then.
#[derive(Clone, Debug)]
pub struct Caller {
    name: String,
    user: Arc<User>,
}

impl Caller {
    /// What the caller may do.
    pub fn role(&self) -> Role {
        self.user.role
    }
}

/// A password to be checked against the file as it was when it was read last.
pub struct Check {
    name: String,
    password: String,
    user: Option<Arc<User>>,
}

impl Check {
    /// Whether it is the user's, which takes a while; an unknown name takes as long as a known one.
    pub fn run(self) -> Checked {
        let fits = match &self.user {
            Some(user) => user.hash.fits(&self.password),
            None => {
                let none = vec![0; KEY_LEN];
                let hash = Hash { log_n: LOG_N, r: R, p: P, salt: none.clone(), key: none };
                hash.fits(&self.password);
                false
            }
        };
        Checked { fits, check: self }
    }
}

/// The result of a [`Check`].
pub struct Checked {
    fits: bool,
    check: Check,
}

/// The users, and the tokens that they got.
pub struct Users {
    path: PathBuf,
    stamp: Stamp,
    users: HashMap<String, Arc<User>>,
    /// Whose they are, and until when they are valid.
    tokens: HashMap<String, (String, Instant)>,
    /// Names and passwords that proved right, and until when that is remembered.
    remembered: HashMap<(String, String), Instant>,
    /// Why the file is not used as it is now.
    refused: Option<String>,
}

impl Users {
    /// Reads the file.
    pub fn open(path: &Path) -> Result<Self, UsersError> {
        Ok(Self {
            path: path.to_owned(),
            stamp: stamp(path),
            users: read(path)?,
            tokens: HashMap::new(),
            remembered: HashMap::new(),
            refused: None,
        })
    }

    /// The file, and why it is not used as it is now.
    pub fn refused(&self) -> Option<(&Path, &str)> {
        Some((&self.path, self.refused.as_deref()?))
    }

    /// Reads the file again if it changed. Users who are gone or have another password must prove
    /// again who they are: their tokens end. A file that is broken leaves the previous users.
    pub fn follow(&mut self) {
        let now = stamp(&self.path);
        if now == self.stamp {
            return;
        }
        self.stamp = now;
        match read(&self.path) {
            Ok(users) => {
                tracing::info!("users of the API read again: {}", users.len());
                let before = std::mem::replace(&mut self.users, users);
                let users = &self.users;
                let stays = |name: &String| match (before.get(name), users.get(name)) {
                    (Some(before), Some(user)) => before.hash == user.hash,
                    _ => false,
                };
                self.tokens.retain(|_, (name, _)| stays(name));
                self.remembered.retain(|(name, _), _| stays(name));
                self.refused = None;
            }
            Err(failure) => {
                tracing::error!("{failure}; the previous users of the API stay");
                self.refused = Some(failure.to_string());
            }
        }
    }

    /// Who shows a token, or a password that was right before; `None` if it must be checked, or is
    /// wrong.
    pub fn known(&self, now: Instant, proof: &Proof) -> Option<Caller> {
        let (name, until) = match proof {
            _ if proof.is_empty() => return None,
            Proof::Token(token) => self.tokens.get(token).map(|(name, until)| (name, until))?,
            Proof::Password(name, password) => {
                (name, self.remembered.get(&(name.clone(), password.clone()))?)
            }
        };
        let user = self.users.get(name).filter(|_| now < *until)?.clone();
        Some(Caller { name: name.clone(), user })
    }

    /// The check of a password that is not known; `None` for what never proves anything.
    pub fn check(&self, proof: Proof) -> Option<Check> {
        let is_empty = proof.is_empty();
        let Proof::Password(name, password) = proof else { return None };
        let user = self.users.get(&name).cloned();
        (!is_empty).then_some(Check { name, password, user })
    }

    /// Takes the result of a check, and remembers a password that was right. If the file has
    /// changed what it says of the user meanwhile, the password must be checked again.
    pub fn note(&mut self, now: Instant, checked: Checked) -> Result<Option<Caller>, Proof> {
        let Checked { fits, check: Check { name, password, user } } = checked;
        if self.users.get(&name) != user.as_ref() {
            return Err(Proof::Password(name, password));
        }
        let Some(user) = user.filter(|_| fits) else { return Ok(None) };
        make_room(&mut self.remembered, now);
        self.remembered.insert((name.clone(), password), now + REMEMBERED);
        Ok(Some(Caller { name, user }))
    }

    /// Whether the file still says the same of a caller.
    pub fn is_current(&self, caller: &Caller) -> bool {
        self.users.get(&caller.name) == Some(&caller.user)
    }

    /// A new token of this caller. It ends with its user.
    pub fn issue(&mut self, now: Instant, caller: &Caller) -> Option<String> {
        self.tokens.retain(|_, (_, until)| now < *until);
        if self.tokens.len() >= TOKENS_MAX {
            self.end_a_token();
        }
        let token = to_hex(&random(TOKEN_LEN)?);
        self.tokens.insert(token.clone(), (caller.name.clone(), now + TOKEN_LIFE));
        Some(token)
    }

    /// Ends the oldest token of the user who has most.
    fn end_a_token(&mut self) {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        self.tokens.values().for_each(|(name, _)| *counts.entry(name).or_default() += 1);
        let most = counts.into_iter().max_by_key(|&(_, count)| count).map(|(name, _)| name);
        let tokens = self.tokens.iter().filter(|(_, (name, _))| Some(name.as_str()) == most);
        let oldest = tokens.min_by_key(|(_, (_, until))| *until);
        if let Some(oldest) = oldest.map(|(token, _)| token.clone()) {
            self.tokens.remove(&oldest);
        }
    }
}

/// Removes what is over, and the oldest entry of a full table.
fn make_room(table: &mut HashMap<(String, String), Instant>, now: Instant) {
    table.retain(|_, until| now < *until);
    if table.len() >= TOKENS_MAX
        && let Some(oldest) =
            table.iter().min_by_key(|&(_, until)| until).map(|(key, _)| key.clone())
    {
        table.remove(&oldest);
    }
}

/// What changes with a file: its device and number, its length, and when it or its entry changed.
type Stamp = Option<[i64; 7]>;

fn stamp(path: &Path) -> Stamp {
    let data = std::fs::metadata(path).ok()?;
    let numbers = [data.dev(), data.ino(), data.len()].map(u64::cast_signed);
    let [device, number, len] = numbers;
    let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
    let [modified, modified_ns, changed, changed_ns] = times;
    Some([device, number, len, modified, modified_ns, changed, changed_ns])
}

fn read(path: &Path) -> Result<HashMap<String, Arc<User>>, UsersError> {
    let text = || {
        let mut text = String::new();
        let len = File::open(path)?.take(FILE_LEN_MAX + 1).read_to_string(&mut text)?;
        match len as u64 > FILE_LEN_MAX {
            true => Err(std::io::ErrorKind::FileTooLarge.into()),
            false => Ok(text),
        }
    };
    let text = text().map_err(|source| UsersError::Read { path: path.to_owned(), source })?;
    parse(&text).map_err(|(line, reason)| UsersError::Line { path: path.to_owned(), line, reason })
}

/// The users in the text of a file; or the line that is wrong, from 1, and what is wrong with it.
fn parse(text: &str) -> Result<HashMap<String, Arc<User>>, (usize, &'static str)> {
    let mut users = HashMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let user = read_line(line).and_then(|(name, user)| {
            if users.len() >= USERS_MAX {
                return Err("too many users");
            }
            users.insert(name, Arc::new(user)).map_or(Ok(()), |_| Err("a name twice"))
        });
        user.map_err(|reason| (at + 1, reason))?;
    }
    Ok(users)
}

/// Reads the text of a file of users; returns how many it has.
pub fn count(text: &str) -> Result<usize, (usize, &'static str)> {
    parse(text).map(|users| users.len())
}

fn read_line(line: &str) -> Result<(String, User), &'static str> {
    let mut parts = line.splitn(3, ':');
    let (Some(name), Some(role), Some(hash)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("not three parts");
    };
    if name.is_empty() {
        return Err("no name");
    }
    let role = Role::of_name(role).filter(|role| [Role::Admin, Role::Viewer].contains(role));
    let role = role.ok_or("the role is neither admin nor viewer")?;
    let hash = Hash::read(hash).ok_or("not a hash of a password")?;
    Ok((name.to_owned(), User { role, hash }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users");
        std::fs::write(&path, text).unwrap();
        (directory, path)
    }

    fn password(name: &str, password: &str) -> Proof {
        Proof::Password(name.to_owned(), password.to_owned())
    }

    /// Checks a password.
    fn proven(users: &mut Users, proof: Proof) -> Option<Caller> {
        let checked = users.check(proof)?.run();
        users.note(Instant::now(), checked).unwrap_or_else(|proof| proven(users, proof))
    }

    fn role(users: &mut Users, name: &str, text: &str) -> Option<Role> {
        proven(users, password(name, text)).map(|caller| caller.role())
    }

    #[test]
    fn a_password_gives_its_users_role_and_no_other_does() {
        let line = line("k8s", Role::Admin, "s:e cret").unwrap();
        assert!(!line.contains("s:e cret"));
        let (_directory, path) = file(&format!("# users\n\n{line}\n"));
        let mut users = Users::open(&path).unwrap();
        assert_eq!(role(&mut users, "k8s", "s:e cret"), Some(Role::Admin));
        assert_eq!(role(&mut users, "k8s", "secret"), None);
        assert_eq!(role(&mut users, "root", "s:e cret"), None);
    }

    /// Regression: `ibsmctl password` wrote a line for an empty password, which then admitted
    /// callers that gave none.
    #[test]
    fn an_empty_password_proves_nothing() {
        assert_eq!(line("k8s", Role::Admin, ""), None);
        let hash = Hash { log_n: LOG_N, r: R, p: P, salt: vec![1; SALT_LEN], key: Vec::new() };
        let (salt, key) = (to_hex(&hash.salt), to_hex(&hash.of("").unwrap()));
        let (_directory, path) = file(&format!("k8s:admin:scrypt${LOG_N}${R}${P}${salt}${key}"));
        let mut users = Users::open(&path).unwrap();
        assert_eq!(role(&mut users, "k8s", ""), None);
        assert!(users.known(Instant::now(), &Proof::Token(String::new())).is_none());
    }

    #[test]
    fn lines_that_are_wrong_are_reported_with_their_number() {
        let good = line("a", Role::Viewer, "x").unwrap();
        let responder = good.replace("viewer", "responder");
        let weak = good.replace("$14$", "$40$");
        let nameless = good.replacen('a', "", 1);
        for bad in ["a:admin", "a:root:x", "a:admin:plain", &responder, &weak, &good, &nameless] {
            let (_directory, path) = file(&format!("{good}\n{}\n", bad));
            let failure = Users::open(&path).map(|_| ()).unwrap_err();
            assert!(matches!(failure, UsersError::Line { line: 2, .. }), "{bad}: {failure}");
        }
        assert!(matches!(Users::open(Path::new("/nowhere/u")), Err(UsersError::Read { .. })));
    }

    #[test]
    fn tokens_expire() {
        let (_directory, path) = file(&line("a", Role::Viewer, "x").unwrap());
        let mut users = Users::open(&path).unwrap();
        let caller = proven(&mut users, password("a", "x")).unwrap();
        let now = Instant::now();
        let token = Proof::Token(users.issue(now, &caller).unwrap());
        let role = |now| users.known(now, &token).map(|caller| caller.role());
        assert_eq!((role(now), role(now + TOKEN_LIFE)), (Some(Role::Viewer), None));
    }

    /// Regression: all tokens ended with any change of the file, but one of a user who was removed
    /// could be given out, and the password be remembered, if the check had begun before.
    #[test]
    fn tokens_and_passwords_end_with_their_user_or_another_password() {
        let [a, b, other] = [("a", "x"), ("b", "y"), ("b", "z")]
            .map(|(name, password)| line(name, Role::Admin, password).unwrap());
        let (_directory, path) = file(&format!("{a}\n{b}\n"));
        let mut users = Users::open(&path).unwrap();
        let callers = [("a", "x"), ("b", "y")].map(|(name, text)| {
            let caller = proven(&mut users, password(name, text)).unwrap();
            (Proof::Token(users.issue(Instant::now(), &caller).unwrap()), caller)
        });
        let [late_a, late_b] = [("a", "x"), ("b", "y")]
            .map(|(name, text)| users.check(password(name, text)).unwrap().run());
        users.follow();
        let is_known = |users: &Users, proof: &Proof| users.known(Instant::now(), proof).is_some();
        assert!(callers.iter().all(|(token, _)| is_known(&users, token)), "nothing has changed");

        // The second one has another password; a third one is new.
        let third = line("c", Role::Viewer, "w").unwrap();
        std::fs::write(&path, format!("{a}\n{other}\n{third}\n")).unwrap();
        users.follow();
        assert!(is_known(&users, &callers[0].0) && is_known(&users, &password("a", "x")));
        assert!(!is_known(&users, &callers[1].0) && !is_known(&users, &password("b", "y")));
        assert!(users.is_current(&callers[0].1) && !users.is_current(&callers[1].1));
        assert!(users.note(Instant::now(), late_a).unwrap().is_some());
        let again = users.note(Instant::now(), late_b).expect_err("it is checked again");
        assert!(proven(&mut users, again).is_none());

        // Another role counts at once. A broken file changes nothing, and is reported.
        std::fs::write(&path, a.replace("admin", "viewer")).unwrap();
        users.follow();
        let role = |users: &Users| users.known(Instant::now(), &callers[0].0).map(|it| it.role());
        assert_eq!(role(&users), Some(Role::Viewer));
        std::fs::write(&path, "a:").unwrap();
        users.follow();
        assert_eq!((role(&users), users.refused().is_some()), (Some(Role::Viewer), true));
        std::fs::write(&path, "").unwrap();
        users.follow();
        assert_eq!((role(&users), users.refused().is_some()), (None, false));
    }

    /// Regression: a file was read again only if its time or length differed: not if a copy with
    /// the time of the old one replaced it.
    #[test]
    fn a_file_that_is_replaced_is_read_again_whatever_its_time() {
        let [a, b] = ["a", "b"].map(|name| line(name, Role::Admin, "x").unwrap());
        let (directory, path) = file(&a);
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut users = Users::open(&path).unwrap();
        let new = directory.path().join("new");
        std::fs::write(&new, &b).unwrap();
        File::options().append(true).open(&new).unwrap().set_modified(time).unwrap();
        std::fs::rename(&new, &path).unwrap();
        users.follow();
        assert_eq!(role(&mut users, "b", "x"), Some(Role::Admin));
    }

    /// Regression: the oldest token of all users ended, so that a viewer ended those of admins.
    #[test]
    fn tokens_are_bounded_and_each_user_ends_only_own_ones() {
        let [a, b] = ["a", "b"].map(|name| line(name, Role::Viewer, "x").unwrap());
        let (_directory, path) = file(&format!("{a}\n{b}\n"));
        let (mut users, now) = (Users::open(&path).unwrap(), Instant::now());
        let [a, b] = ["a", "b"].map(|name| proven(&mut users, password(name, "x")).unwrap());
        let first = Proof::Token(users.issue(now, &b).unwrap());
        let of_a: Vec<_> = (1..TOKENS_MAX as u32 + 5)
            .map(|n| users.issue(now + Duration::from_millis(n.into()), &a).unwrap())
            .collect();
        assert_eq!(users.tokens.len(), TOKENS_MAX);
        assert!(users.known(now, &first).is_some(), "it is another user's");
        assert!(users.known(now, &Proof::Token(of_a[0].clone())).is_none(), "it is the oldest");
        users.issue(now + TOKEN_LIFE / 2, &b).unwrap();
        assert!(users.known(now, &first).is_some(), "a holds more");
    }

    #[test]
    fn a_header_has_a_password_or_a_token() {
        let read = |value: &str| match Proof::of_header(value) {
            Some(Proof::Password(name, password)) => format!("{name}/{password}"),
            Some(Proof::Token(token)) => token,
            None => "nothing".to_owned(),
        };
        assert_eq!(read("Basic YTpiOmM="), "a/b:c");
        assert_eq!(read("Basic 0123abcd"), "0123abcd");
        assert_eq!(read("bearer 0123abcd"), "0123abcd");
        assert_eq!(read("Negotiate YTpi"), "nothing");
        assert_eq!(read("Basic"), "nothing");
    }
}
