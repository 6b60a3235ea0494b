//! Who asks. Sources: `pkg/authentication/request/{x509,bearertoken,union,anonymous}`, `pkg/authentication/group` of `k8s.io/apiserver`.

use std::collections::BTreeMap;

/// The user of those who say nothing of themselves.
const ANONYMOUS: &str = "system:anonymous";
/// Groups that are added by who was asked, never by who asks.
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// What of a user says which certificate they have shown.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Somebody who was recognized.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// Their name.
    pub name: String,
    /// Their UID, or nothing.
    pub uid: String,
    /// Groups that they are in.
    pub groups: Vec<String>,
    /// What else is known of them.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Bytes of all texts.
    #[must_use]
    pub fn size(&self) -> usize {
        let extra =
            self.extra.iter().map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>());
        self.name.len()
            + self.uid.len()
            + self.groups.iter().map(String::len).sum::<usize>()
            + extra.sum::<usize>()
    }

    fn authenticated(mut self) -> Self {
        let is_said = self.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED);
        if self.name != ANONYMOUS && !is_said {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

/// What came of one way to say who one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// Nothing was said in this way.
    Absent,
    /// What was said does not hold, or nobody could say whether it does.
    Refused,
    /// It holds.
    Proven(User),
}

/// Who asks, by certificate and then by token; nobody knows where this is `None`. Who says something that does not hold is not taken for
/// somebody who says nothing.
#[must_use]
pub fn recognize(certificate: Credential, token: Credential, anonymous: bool) -> Option<User> {
    match (certificate, token) {
        (Credential::Proven(user), _) | (_, Credential::Proven(user)) => Some(user.authenticated()),
        (Credential::Absent, Credential::Absent) if anonymous => {
            let (name, groups) = (ANONYMOUS.to_owned(), vec![UNAUTHENTICATED.to_owned()]);
            Some(User { name, groups, ..User::default() })
        }
        (Credential::Absent | Credential::Refused, Credential::Absent | Credential::Refused) => None,
    }
}

/// Names of a certificate's subject, in the order of the certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// `CN`.
    pub common_names: Vec<String>,
    /// `O`.
    pub organizations: Vec<String>,
    /// UIDs (`1.3.6.1.4.1.57683.2`).
    pub uids: Vec<String>,
}

/// Who has shown a certificate that was verified; `fingerprint` is its SHA-256 in hexadecimal digits.
#[must_use]
pub fn of_certificate(names: CertificateNames, fingerprint: &str) -> Credential {
    let CertificateNames { mut common_names, organizations, uids } = names;
    // Of several the last one counts in Go.
    let Some(name) = common_names.pop().filter(|name| !name.is_empty()) else { return Credential::Absent };
    let uid = match uids.as_slice() {
        [] => String::new(),
        [uid] if !uid.is_empty() => uid.clone(),
        _ => return Credential::Refused,
    };
    let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={fingerprint}")])]);
    Credential::Proven(User { name, uid, groups: organizations, extra })
}

/// The token of an `Authorization` header.
#[must_use]
pub fn bearer(header: &str) -> Option<&str> {
    let mut parts = header.trim().splitn(3, ' ');
    let scheme = parts.next()?;
    let token = parts.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        User { name: name.to_owned(), groups, ..User::default() }
    }

    #[test]
    fn a_certificate_counts_before_a_token_and_nothing_wrong_is_anonymous() {
        use Credential::{Absent, Proven, Refused};
        let (cert, token) = (user("c", &[]), user("t", &["g"]));
        for (certificate, bearer, anonymous, expected) in [
            (Proven(cert.clone()), Proven(token.clone()), true, Some(user("c", &[AUTHENTICATED]))),
            (Proven(cert), Refused, false, Some(user("c", &[AUTHENTICATED]))),
            (Refused, Proven(token.clone()), false, Some(user("t", &["g", AUTHENTICATED]))),
            (Absent, Proven(token), true, Some(user("t", &["g", AUTHENTICATED]))),
            (Absent, Absent, true, Some(user(ANONYMOUS, &[UNAUTHENTICATED]))),
            (Absent, Absent, false, None),
            (Refused, Absent, true, None),
            (Absent, Refused, true, None),
            (Refused, Refused, true, None),
            (Refused, Refused, false, None),
        ] {
            assert_eq!(
                recognize(certificate.clone(), bearer.clone(), anonymous),
                expected,
                "{certificate:?} {bearer:?}"
            );
        }
    }

    #[test]
    fn nobody_is_in_both_groups() {
        for groups in [&[AUTHENTICATED][..], &[UNAUTHENTICATED]] {
            let known = user("u", groups);
            assert_eq!(recognize(Credential::Proven(known.clone()), Credential::Absent, false), Some(known));
        }
        let known = user(ANONYMOUS, &[]);
        assert_eq!(recognize(Credential::Absent, Credential::Proven(known.clone()), false), Some(known));
    }

    #[test]
    fn a_certificate_says_a_name_and_groups() {
        let texts = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let of = |names: &[&str], organizations: &[&str], uids: &[&str]| {
            let names = CertificateNames {
                common_names: texts(names),
                organizations: texts(organizations),
                uids: texts(uids),
            };
            of_certificate(names, "ab")
        };
        let Credential::Proven(user) = of(&["first", "last"], &["b", "a"], &["u"]) else {
            panic!("it holds")
        };
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("last", "u"));
        assert_eq!(user.groups, ["b", "a"]);
        assert_eq!(user.extra[CREDENTIAL_ID], ["X509SHA256=ab"]);
        assert_eq!(user.size(), 4 + 1 + 2 + CREDENTIAL_ID.len() + "X509SHA256=ab".len());
        for nameless in [of(&[], &["a"], &[]), of(&[""], &["a"], &[]), of(&["first", ""], &[], &[])] {
            assert_eq!(nameless, Credential::Absent);
        }
        for wrong in [of(&["n"], &[], &[""]), of(&["n"], &[], &["u", "v"])] {
            assert_eq!(wrong, Credential::Refused);
        }
    }

    #[test]
    fn a_token_is_what_follows_the_scheme() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            (" BEARER abc  ", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer  abc", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("Bearerabc", None),
            ("abc", None),
            ("", None),
        ] {
            assert_eq!(bearer(header), token, "{header:?}");
        }
    }
}
