//! Unit names: `ecs.service`, the template `getty@.service`, its instance `getty@tty1.service`.

const TYPES: [&str; 11] =
    ["service", "socket", "target", "device", "mount", "automount", "swap", "timer", "path", "slice", "scope"];

/// UNIT_NAME_MAX of systemd (src/basic/unit-name.h).
const MAX_NAME: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    Plain,
    Template,
    Instance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitName<'a> {
    pub whole: &'a str,
    /// The part before the `@` or the type.
    pub prefix: &'a str,
    /// Between `@` and the type; empty for a template.
    pub instance: Option<&'a str>,
    /// `service`, `timer` …
    pub unit_type: &'a str,
}

impl<'a> UnitName<'a> {
    /// `None` if it is not a valid unit name.
    pub fn of(name: &'a str) -> Option<UnitName<'a>> {
        if name.is_empty() || name.len() > MAX_NAME {
            return None;
        }
        let (stem, unit_type) = name.rsplit_once('.')?;
        let legal = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
        if stem.is_empty() || !TYPES.contains(&unit_type) || !stem.chars().all(legal) {
            return None;
        }
        match stem.split_once('@') {
            None => Some(UnitName { whole: name, prefix: stem, instance: None, unit_type }),
            Some(("", _)) => None,
            Some((prefix, instance)) => Some(UnitName { whole: name, prefix, instance: Some(instance), unit_type }),
        }
    }

    pub fn kind(&self) -> NameKind {
        match self.instance {
            None => NameKind::Plain,
            Some("") => NameKind::Template,
            Some(_) => NameKind::Instance,
        }
    }

    /// `getty@.service` for `getty@tty1.service`; `None` for a plain name.
    pub fn template(&self) -> Option<String> {
        self.instance.map(|_| self.with_instance(""))
    }

    pub fn with_instance(&self, instance: &str) -> String {
        format!("{}@{instance}.{}", self.prefix, self.unit_type)
    }

    /// Whether units of this type may have aliases (unit_type_may_alias).
    pub fn may_be_alias(&self) -> bool {
        matches!(self.unit_type, "service" | "socket" | "target" | "device" | "timer" | "path")
    }

    /// Whether there may be templates of this type (unit_type_may_template).
    pub fn may_be_template(&self) -> bool {
        matches!(self.unit_type, "service" | "socket" | "target" | "timer" | "path")
    }

    /// The names whose drop-in directories apply, most specific first: for `a-b@x.service` these are `a-b@x.service`,
    /// `a-b@.service`, `a-@.service` (of the template), `a-@x.service`. The type's own directory comes last and is not included.
    pub fn drop_in_names(&self) -> Vec<String> {
        let mut names = vec![self.whole.to_owned()];
        if self.kind() == NameKind::Instance {
            let template = self.with_instance("");
            if let Some(template) = UnitName::of(&template) {
                names.extend(template.drop_in_names());
            }
        }
        // Prefixes end in a dash: those of `foo-bar-waldo` are `foo-bar-` and `foo-`.
        let whole = self.prefix.strip_suffix('-').unwrap_or(self.prefix);
        if let Some(dash) = whole.rfind('-').filter(|at| *at > 0) {
            let prefix = &whole[..=dash];
            let shorter = match self.instance {
                Some(instance) => format!("{prefix}@{instance}.{}", self.unit_type),
                None => format!("{prefix}.{}", self.unit_type),
            };
            if let Some(shorter) = UnitName::of(&shorter) {
                for name in shorter.drop_in_names() {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
        }
        names
    }
}

/// Whether a link named `link` may be an alias of the unit `target` (unit_validate_alias_symlink_or_warn).
pub fn may_alias(link: &UnitName<'_>, target: &UnitName<'_>) -> bool {
    let kinds = match (link.kind(), target.kind()) {
        (NameKind::Instance, NameKind::Instance) => link.instance == target.instance,
        (NameKind::Instance, NameKind::Template) => true,
        (a, b) => a == b,
    };
    kinds
        && link.may_be_alias()
        && (link.kind() == NameKind::Plain || link.may_be_template())
        && link.whole != target.whole
        && link.unit_type == target.unit_type
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kinds_of_names() {
        assert_eq!(UnitName::of("ecs.service").unwrap().kind(), NameKind::Plain);
        assert_eq!(UnitName::of("getty@.service").unwrap().kind(), NameKind::Template);
        assert_eq!(UnitName::of("getty@tty1.service").unwrap().kind(), NameKind::Instance);
        assert_eq!(UnitName::of("a@b@c.service").unwrap().instance, Some("b@c"));
        for bad in ["", ".service", "a.conf", "a", "@x.service", "a b.service", "ä.service", "a.service.d"] {
            assert_eq!(UnitName::of(bad), None, "{bad}");
        }
    }

    #[test]
    fn drop_ins_of_prefixes() {
        let names = |n: &str| UnitName::of(n).unwrap().drop_in_names();
        assert_eq!(names("a.service"), ["a.service"]);
        assert_eq!(names("foo-bar-waldo.service"), ["foo-bar-waldo.service", "foo-bar-.service", "foo-.service"]);
        assert_eq!(names("foo-.service"), ["foo-.service"]);
        assert_eq!(names("-x.service"), ["-x.service"]);
        assert_eq!(names("a-b@x.service"), ["a-b@x.service", "a-b@.service", "a-@.service", "a-@x.service"]);
    }

    proptest! {
        #[test]
        fn any_name(name in "[a-z@.\\-]{0,20}(\\.service|\\.timer)?") {
            if let Some(unit) = UnitName::of(&name) {
                prop_assert!(unit.drop_in_names().contains(&name));
                if let Some(instance) = unit.instance {
                    prop_assert_eq!(unit.with_instance(instance), name);
                }
            }
        }
    }
}
