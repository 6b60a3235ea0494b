//! Options in the form of fstab: flags of mount(2), wishes to whoever mounts, and data for the file system.

use super::{IdMap, PlanError};

/// Flags of mount(2) that options stand for (`linux/mount.h`).
pub mod flag {
    #![expect(missing_docs, reason = "the names are the kernel's: mount(2) says what they mean")]
    pub const RDONLY: u64 = 1;
    pub const NOSUID: u64 = 1 << 1;
    pub const NODEV: u64 = 1 << 2;
    pub const NOEXEC: u64 = 1 << 3;
    pub const SYNCHRONOUS: u64 = 1 << 4;
    pub const REMOUNT: u64 = 1 << 5;
    pub const MANDLOCK: u64 = 1 << 6;
    pub const DIRSYNC: u64 = 1 << 7;
    pub const NOSYMFOLLOW: u64 = 1 << 8;
    pub const NOATIME: u64 = 1 << 10;
    pub const NODIRATIME: u64 = 1 << 11;
    pub const BIND: u64 = 1 << 12;
    pub const REC: u64 = 1 << 14;
    pub const UNBINDABLE: u64 = 1 << 17;
    pub const PRIVATE: u64 = 1 << 18;
    pub const SLAVE: u64 = 1 << 19;
    pub const SHARED: u64 = 1 << 20;
    pub const RELATIME: u64 = 1 << 21;
    pub const STRICTATIME: u64 = 1 << 24;
}

/// Options of one mount, later ones having overruled earlier ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Flags of mount(2) that were asked for, without those of propagation.
    pub set: u64,
    /// Flags that were asked not to be.
    pub clear: u64,
    /// How the mount propagates, if that was said.
    pub propagation: u64,
    /// The source is an image that needs a loop device, and how that device reads it.
    pub device: Option<Device>,
    /// How owners appear.
    pub idmap: Option<IdMap>,
}

/// A wish for a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Through the page cache.
    Cached,
    /// Past it (`direct-io`).
    Direct,
}

impl Options {
    /// Whether nothing may be written through the mount.
    pub fn is_read_only(&self) -> bool {
        self.set & flag::RDONLY != 0
    }

    /// Reads options that templates and prefixes have been taken out of; returns those for the file system, too.
    ///
    /// As mount(8) does, it passes over those that begin with `x-` or `X-`; what is meant for containerd's mount manager
    /// and still there is refused (`parseMountOptions` in containerd's `core/mount/mount_linux.go`).
    pub(super) fn parse(options: &[String]) -> Result<(Self, Vec<String>), PlanError> {
        let mut parsed = Self::default();
        let mut data = Vec::new();
        let (mut uids, mut gids, mut direct) = (None, None, false);
        for option in options {
            if let Some(value) = option.strip_prefix("X-containerd.dmverity=") {
                return Err(PlanError::Verity(value.to_owned()));
            } else if option.starts_with("X-containerd.") {
                return Err(PlanError::Unconsumed(option.clone()));
            } else if let Some(value) = option.strip_prefix("uidmap=") {
                uids = Some(value);
            } else if let Some(value) = option.strip_prefix("gidmap=") {
                gids = Some(value);
            } else if let Some(propagation) = propagation(option) {
                parsed.propagation = propagation;
            } else if let Some((wish, flags)) = known(option) {
                parsed.turn(wish, flags);
            } else if option == "loop" {
                parsed.device = Some(Device::Cached);
            } else if option == "direct-io" {
                direct = true;
            } else if !is_comment(option) {
                data.push(option.clone());
            }
        }
        match (&mut parsed.device, direct) {
            (Some(device), true) => *device = Device::Direct,
            (None, true) => data.push("direct-io".to_owned()),
            (Some(_) | None, false) => {}
        }
        parsed.idmap = IdMap::of(uids, gids)?;
        Ok((parsed, data))
    }

    fn turn(&mut self, wish: Wish, flags: u64) {
        let (to, from) = match wish {
            Wish::Set => (&mut self.set, &mut self.clear),
            Wish::Clear => (&mut self.clear, &mut self.set),
        };
        *to |= flags;
        *from &= !flags;
    }
}

/// Options that speak to people or to the program that mounts, and to no file system.
fn is_comment(option: &str) -> bool {
    option.is_empty() || option == "defaults" || option.starts_with("x-") || option.starts_with("X-")
}

#[derive(Debug, Clone, Copy)]
enum Wish {
    Set,
    Clear,
}

fn known(option: &str) -> Option<(Wish, u64)> {
    use Wish::{Clear, Set};
    Some(match option {
        "ro" => (Set, flag::RDONLY),
        "rw" => (Clear, flag::RDONLY),
        "nosuid" => (Set, flag::NOSUID),
        "suid" => (Clear, flag::NOSUID),
        "nodev" => (Set, flag::NODEV),
        "dev" => (Clear, flag::NODEV),
        "noexec" => (Set, flag::NOEXEC),
        "exec" => (Clear, flag::NOEXEC),
        "sync" => (Set, flag::SYNCHRONOUS),
        "async" => (Clear, flag::SYNCHRONOUS),
        "remount" => (Set, flag::REMOUNT),
        "mand" => (Set, flag::MANDLOCK),
        "nomand" => (Clear, flag::MANDLOCK),
        "dirsync" => (Set, flag::DIRSYNC),
        "nosymfollow" => (Set, flag::NOSYMFOLLOW),
        "symfollow" => (Clear, flag::NOSYMFOLLOW),
        "noatime" => (Set, flag::NOATIME),
        "atime" => (Clear, flag::NOATIME),
        "nodiratime" => (Set, flag::NODIRATIME),
        "diratime" => (Clear, flag::NODIRATIME),
        "bind" => (Set, flag::BIND),
        "rbind" => (Set, flag::BIND | flag::REC),
        "relatime" => (Set, flag::RELATIME),
        "norelatime" => (Clear, flag::RELATIME),
        "strictatime" => (Set, flag::STRICTATIME),
        "nostrictatime" => (Clear, flag::STRICTATIME),
        _ => return None,
    })
}

fn propagation(option: &str) -> Option<u64> {
    Some(match option {
        "private" => flag::PRIVATE,
        "rprivate" => flag::PRIVATE | flag::REC,
        "shared" => flag::SHARED,
        "rshared" => flag::SHARED | flag::REC,
        "slave" => flag::SLAVE,
        "rslave" => flag::SLAVE | flag::REC,
        "unbindable" => flag::UNBINDABLE,
        "runbindable" => flag::UNBINDABLE | flag::REC,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<(Options, Vec<String>), PlanError> {
        Options::parse(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_flags_or_data_and_later_ones_win() {
        let (parsed, data) =
            parse(&["ro", "rw", "nosuid", "lowerdir=/a:/b", "rbind", "volatile", "rslave"]).unwrap();
        assert_eq!(parsed.set, flag::NOSUID | flag::BIND | flag::REC);
        assert_eq!(parsed.clear, flag::RDONLY);
        assert_eq!(parsed.propagation, flag::SLAVE | flag::REC);
        assert_eq!(data, ["lowerdir=/a:/b", "volatile"]);
        assert!(parse(&["rw", "ro"]).unwrap().0.is_read_only());
    }

    #[test]
    fn wishes_to_the_one_who_mounts_do_not_reach_the_file_system() {
        let (parsed, data) =
            parse(&["loop", "x-gvfs-hide", "X-mount.mkdir", "defaults", "", "noload"]).unwrap();
        assert_eq!(parsed.device, Some(Device::Cached));
        assert_eq!(data, ["noload"]);
        assert_eq!(parse(&["direct-io", "loop"]).unwrap().0.device, Some(Device::Direct));
        assert_eq!(parse(&["direct-io"]).unwrap().1, ["direct-io"]);
    }

    #[test]
    fn what_a_mount_manager_should_have_done_is_never_passed_over() {
        assert_eq!(
            parse(&["X-containerd.mkdir.path=/x"]),
            Err(PlanError::Unconsumed("X-containerd.mkdir.path=/x".to_owned()))
        );
        assert_eq!(parse(&["ro", "X-containerd.dmverity=/m"]), Err(PlanError::Verity("/m".to_owned())));
    }

    #[test]
    fn ids_are_mapped_for_users_and_groups_together() {
        assert!(parse(&["uidmap=0:1:2", "gidmap=0:1:2"]).unwrap().0.idmap.is_some());
        parse(&["uidmap=0:1:2"]).expect_err("half a mapping");
    }
}
