//! Parses multicast groups: flags for their properties, and lines `mgid=…`.

use ib_mad::types::{Gid, Mtu, PKey, Rate, Sl};

use super::super::text::{abbreviates, name_and_value, number};
use super::super::{Group, GroupSl, IPOIB_QKEY, broadcast_mgid, is_ip};
use super::{Definition, Parser, PartitionSyntax};

/// Link-local, the scope of groups without an explicit one.
const DEFAULT_SCOPE: u8 = 2;

/// Properties of groups, as far as given.
#[derive(Clone, Copy)]
pub(super) struct Flags {
    /// The MTU as written, which may be an invalid code.
    pub(super) mtu: u64,
    pub(super) rate: u64,
    pub(super) sl: Sl,
    /// Whether a group's own line set it.
    pub(super) sl_is_own: bool,
    /// Bit n: scope n.
    pub(super) scopes: u16,
    pub(super) qkey: u32,
    pub(super) tclass: u8,
    pub(super) flow_label: u32,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            mtu: Mtu::B2048.code().into(),
            rate: Rate::Gbps10.code().into(),
            sl: Sl::default(),
            sl_is_own: false,
            scopes: 0,
            qkey: 0,
            tclass: 0,
            flow_label: 0,
        }
    }
}

impl Parser<'_> {
    /// Parses a flag for a property of multicast groups; returns whether it was one.
    pub(super) fn group_flag(
        &mut self,
        flags: &mut Flags,
        name: &str,
        value: Option<&str>,
    ) -> bool {
        // The order matters, since a prefix suffices: "s" is scope.
        const NAMES: [&str; 7] = ["mtu", "rate", "scope", "Q_Key", "TClass", "sl", "FlowLabel"];
        let Some(&key) = NAMES.iter().find(|key| abbreviates(name, key)) else { return false };
        let parsed = value.and_then(number);
        let (got, rest) = parsed.unwrap_or((0, value.unwrap_or_default()));
        let passed_over = |parser: &mut Self, expected: &str| {
            let got = value.unwrap_or_default();
            parser.pass_over(format!("{key} must be {expected}, not '{got}'"));
        };
        // For these flags, nothing may follow the number.
        let whole = parsed.is_some() && (rest.is_empty() || rest.starts_with(char::is_whitespace));
        match key {
            "sl" if whole && got <= 15 => {
                flags.sl = Sl::from_low_bits(got as u16);
                flags.sl_is_own = true;
            }
            "sl" => passed_over(self, "0 to 15"),
            "FlowLabel" if whole && got <= 0xF_FFFF => flags.flow_label = got as u32,
            "FlowLabel" => passed_over(self, "0 to 0xfffff"),
            "scope" if (1..=15).contains(&got) => flags.scopes |= 1 << got,
            "scope" => passed_over(self, "1 to 15"),
            "mtu" | "rate" if value.is_none() => passed_over(self, "a code such as 4"),
            "mtu" => flags.mtu = got,
            "rate" => flags.rate = got,
            "Q_Key" => flags.qkey = got as u32,
            _ => flags.tclass = got as u8,
        }
        let too_large =
            (key == "Q_Key" && got > u64::from(u32::MAX)) || (key == "TClass" && got > 255);
        if (key == "Q_Key" || key == "TClass") && (parsed.is_none() || too_large) {
            let taken = if key == "Q_Key" { got & 0xFFFF_FFFF } else { got & 0xFF };
            let got = value.unwrap_or_default();
            self.remark(format!("{key} '{got}' is not a valid number; it is read as {taken:#x}"));
        } else if !matches!(key, "sl" | "FlowLabel") && parsed.is_some() && !rest.is_empty() {
            self.remark(format!(
                "{key}={} has '{rest}' after the number",
                value.unwrap_or_default()
            ));
        }
        true
    }

    /// Parses a line `mgid=…`; `flags` is the text after the MGID.
    pub(super) fn group_line(
        &mut self,
        definition: Definition,
        value: Option<&str>,
        flags: Option<&str>,
    ) -> Result<(), PartitionSyntax> {
        let text = value.ok_or(PartitionSyntax::NoMgid)?;
        let inherited = definition.flags;
        let mut own = Flags { sl_is_own: false, tclass: 0, ..inherited };
        for token in flags.into_iter().flat_map(|flags| flags.split(',')) {
            let (name, value) = name_and_value(token);
            if name.is_empty() {
                self.remark("a flag is empty");
            } else if !self.group_flag(&mut own, name, value) {
                self.pass_over(format!("unknown flag '{name}' of a group"));
            }
        }
        let Some(mut mgid) = text.parse::<Gid>().ok().filter(|gid| gid.is_multicast()) else {
            self.remark(format!(
                "mgid '{text}' is not a multicast GID, such as ff12:401b::16; the group is not \
                 created"
            ));
            return Ok(());
        };
        if is_ip(mgid) {
            let full = definition.pkey.0 | 0x8000;
            let given = u16::from_be_bytes([mgid.0[4], mgid.0[5]]);
            let any = given == 0 || mgid == broadcast_mgid(PKey::DEFAULT_FULL);
            if !any && given != full {
                self.remark(format!(
                    "mgid {mgid} has P_Key {given:#06x} in it, its partition \
                    {full:#06x}; the group is not created"
                ));
                return Ok(());
            }
            for (what, group, partition) in
                [("mtu", own.mtu, inherited.mtu), ("rate", own.rate, inherited.rate)]
            {
                if group != partition {
                    self.remark(format!(
                        "{what} of the IP group {mgid} must be that of its \
                        partition, {partition}, not {group}; the group is not created"
                    ));
                    return Ok(());
                }
            }
            mgid.0[4..6].copy_from_slice(&full.to_be_bytes());
        } else if mgid.0[1] & 0xE0 != 0 {
            self.remark(format!("mgid {mgid} has reserved flags set; the group is not created"));
            return Ok(());
        }
        self.group(&definition, own, mgid);
        Ok(())
    }

    /// Adds a group in each of its scopes, unless it is invalid.
    pub(super) fn group(&mut self, definition: &Definition, flags: Flags, mgid: Gid) {
        let scopes = if flags.scopes == 0 { 1 << DEFAULT_SCOPE } else { flags.scopes };
        for scope in (0..16).filter(|scope| scopes >> scope & 1 != 0) {
            let mut mgid = mgid;
            mgid.0[1] = mgid.0[1] & 0xF0 | scope;
            let group = self.group_of_scope(definition, flags, mgid);
            match group {
                Ok(group) => self.config.groups.push(group),
                Err(reason) => self.remark(format!("{reason}; group {mgid} is not created")),
            }
        }
    }

    fn group_of_scope(
        &self,
        definition: &Definition,
        flags: Flags,
        mgid: Gid,
    ) -> Result<Group, String> {
        let code = |value: u64| u8::try_from(value).ok();
        let mtu = code(flags.mtu).and_then(Mtu::from_code).ok_or_else(|| {
            let codes = "1 for 256 bytes, 2 for 512, 3 for 1024, 4 for 2048, 5 for 4096";
            format!("mtu must be a code, {codes}, not {}", flags.mtu)
        })?;
        let rate = code(flags.rate).and_then(Rate::from_code).ok_or_else(|| {
            format!(
                "rate must be a code such as 3 for 10 Gb/s or 7 for 40 Gb/s, not {}",
                flags.rate
            )
        })?;
        let groups = &self.config.groups;
        if groups.iter().any(|group| group.mgid == mgid) {
            return Err("it is already defined".to_owned());
        }
        if is_ip(mgid) {
            let mut broadcast = broadcast_mgid(definition.pkey);
            broadcast.0[1] = broadcast.0[1] & 0xF0 | mgid.0[1] & 0xF;
            if mgid != broadcast && !groups.iter().any(|group| group.mgid == broadcast) {
                return Err(format!(
                    "an IP group needs the broadcast group {broadcast} (flag ipoib)"
                ));
            }
        } else if mgid.0[2..4] == [0xA0, 0x1B] && mgid.0[1] & 0xF == DEFAULT_SCOPE {
            return Err("signature a01b is not for link-local scope".to_owned());
        }
        let qkey = if is_ip(mgid) && flags.qkey == 0 { IPOIB_QKEY } else { flags.qkey };
        let sl = match flags.sl_is_own {
            true => GroupSl::Own(flags.sl),
            false => GroupSl::Inherited(flags.sl),
        };
        let Flags { tclass, flow_label, .. } = flags;
        Ok(Group { pkey: definition.pkey, mgid, mtu, rate, sl, qkey, tclass, flow_label })
    }
}
