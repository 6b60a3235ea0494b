//! User and groups of the container's process.
//!
//! Source: `pkg/kubelet/kuberuntime/security_context.go` (what counts as root), `security_context_others.go`
//! `verifyRunAsNonRoot`, containerd `pkg/oci` `WithUser`, `WithAdditionalGIDs`. The same inputs give the same user on
//! every start (CVE-2019-11245).

use std::collections::BTreeSet;

use oci_spec::runtime::User;

use super::{ConfigError, ContainerInputs};
use crate::spec::SupplementalGroupsPolicy;

/// Largest id that every runtime takes.
const ID_MAX: u32 = i32::MAX as u32;
/// Longest user string of an image that is looked at.
const USER_BYTES_MAX: usize = 256;

/// The account files of a root file system, size-capped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// `/etc/passwd`.
    pub passwd: String,
    /// `/etc/group`.
    pub group: String,
}

/// Numbers for the process. The group is the pod's, else that of the user's account, else 0; a group in the image's USER
/// counts for nothing, since the kubelet passes only the user on.
pub(super) fn resolve(inputs: &ContainerInputs<'_>) -> Result<User, ConfigError> {
    let (pod, own) = (&inputs.pod.security, &inputs.container.security);
    let run_as_user = own.run_as_user.or(pod.run_as_user);
    let wanted = match run_as_user {
        Some(uid) => Id::Number(checked(uid, "uid")?),
        None => image_user(&inputs.image.config.user)?,
    };
    check_non_root(inputs, run_as_user, &wanted)?;
    let account = find_user(inputs.accounts, &wanted);
    let uid = match (wanted, &account) {
        (Id::Number(uid), _) => uid,
        (Id::Name(_), Some(account)) => account.uid,
        (Id::Name(name), None) => return Err(ConfigError::NoSuchUser { name }),
    };
    let gid = match own.run_as_group.or(pod.run_as_group) {
        Some(gid) => checked(gid, "gid")?,
        None => account.as_ref().map_or(0, |account| account.gid),
    };
    let mut user = User::default();
    user.set_uid(uid).set_gid(gid).set_additional_gids(Some(groups(inputs, gid, account.as_ref())));
    Ok(user)
}

/// The user or group that is asked for.
enum Id {
    Number(u32),
    Name(String),
}

struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

/// The user of an image's `user[:group]`; nothing is root. What looks like a number is one: a number that is out of range
/// never becomes another user, nor a name (CVE-2024-40635).
fn image_user(text: &str) -> Result<Id, ConfigError> {
    if text.len() > USER_BYTES_MAX || text.contains(char::is_control) {
        return Err(ConfigError::UserSyntax { user: text.chars().take(USER_BYTES_MAX).collect() });
    }
    let user = text.split(':').next().unwrap_or_default();
    if user.is_empty() {
        return Ok(Id::Number(0));
    }
    let digits = user.strip_prefix(['+', '-']).unwrap_or(user);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Id::Name(user.to_owned()));
    }
    let number = user.parse().ok().filter(|number| *number <= ID_MAX);
    number.map(Id::Number).ok_or_else(|| ConfigError::IdOutOfRange { user: text.to_owned(), which: "uid" })
}

fn checked(id: u32, which: &'static str) -> Result<u32, ConfigError> {
    if id <= ID_MAX { Ok(id) } else { Err(ConfigError::IdOutOfRange { user: id.to_string(), which }) }
}

fn check_non_root(
    inputs: &ContainerInputs<'_>,
    run_as_user: Option<u32>,
    user: &Id,
) -> Result<(), ConfigError> {
    let own = inputs.container.security.run_as_non_root;
    if own.or(inputs.pod.security.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let (pod, container) = (inputs.pod_text(), inputs.container.name.to_string());
    match (run_as_user, user) {
        (Some(0), _) => Err(ConfigError::RootAskedFor { pod, container }),
        (Some(_), _) => Ok(()),
        (None, Id::Name(name)) => Err(ConfigError::NonNumericUser { user: name.clone(), pod, container }),
        (None, Id::Number(0)) => Err(ConfigError::ImageRunsAsRoot { pod, container }),
        (None, Id::Number(_)) => Ok(()),
    }
}

/// The primary group, the pod's groups and, unless the pod is strict, those of the image's group file. The primary group
/// is among them, as containerd has it (CVE-2022-2995, CVE-2023-25173): a file that its group may not read stays closed.
fn groups(inputs: &ContainerInputs<'_>, primary: u32, account: Option<&Account<'_>>) -> Vec<u32> {
    let pod = &inputs.pod.security;
    let mut all: BTreeSet<u32> = pod.supplemental_groups.iter().copied().chain(pod.fs_group).collect();
    all.insert(primary);
    match pod.supplemental_groups_policy {
        SupplementalGroupsPolicy::Strict => {}
        SupplementalGroupsPolicy::Merge => {
            if let Some(account) = account {
                all.extend(image_groups(inputs.accounts, account.name));
            }
        }
    }
    all.into_iter().collect()
}

fn find_user<'a>(accounts: &'a Accounts, wanted: &Id) -> Option<Account<'a>> {
    accounts.passwd.lines().filter_map(passwd_line).find(|account| match wanted {
        Id::Number(uid) => account.uid == *uid,
        Id::Name(name) => account.name == name,
    })
}

/// `name:password:uid:gid:…`
fn passwd_line(line: &str) -> Option<Account<'_>> {
    let mut fields = line.trim().split(':');
    let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
    let mut ids = fields.skip(1);
    Some(Account { name, uid: number(ids.next()?)?, gid: number(ids.next()?)? })
}

/// `name:password:gid:member,member`
fn group_line(line: &str) -> Option<(&str, u32, &str)> {
    let mut fields = line.trim().split(':');
    let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
    let gid = number(fields.nth(1)?)?;
    Some((name, gid, fields.next().unwrap_or("")))
}

/// Groups that list the user, its own apart.
fn image_groups<'a>(accounts: &'a Accounts, user: &'a str) -> impl Iterator<Item = u32> + 'a {
    let lines = accounts.group.lines().filter_map(group_line);
    lines
        .filter(move |(group, _, members)| *group != user && members.split(',').any(|member| member == user))
        .map(|(_, gid, _)| gid)
}

fn number(field: &str) -> Option<u32> {
    field.parse().ok().filter(|id| *id <= ID_MAX)
}
