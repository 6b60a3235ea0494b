//! The plan of a root file system.

use super::data::{self, Datum, Location};
use super::template::{Active, FILLED_BYTES_MAX, Filler};
use super::transform::{self, Directory, Image};
use super::{MOUNTS_MAX, Options, PlanError, flag};

/// A mount as it is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mount {
    /// Type of the file system, after the prefixes of a mount manager.
    pub kind: String,
    /// What is mounted.
    pub source: String,
    /// Where, from the root file system on.
    pub target: String,
    /// How.
    pub options: Vec<String>,
}

/// Directories that the plan is for, without a slash at their ends.
#[derive(Debug, Clone, Copy)]
pub struct Roots<'a> {
    /// Where mounts that only serve later ones are, each by its number.
    pub layers: &'a str,
    /// Where containerd keeps everything, if that is known.
    pub containerd: Option<&'a str>,
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// One for each mount that was asked for.
    pub steps: Vec<Step>,
}

/// One mount, and what comes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// An image to make.
    pub image: Option<Image>,
    /// Directories to make.
    pub directories: Vec<Directory>,
    /// What kind of mount it is.
    pub kind: MountType,
    /// What is mounted.
    pub source: Location,
    /// How.
    pub options: Options,
    /// What the file system is told.
    pub data: Vec<Datum>,
    /// Where.
    pub place: Place,
}

/// Types of mounts, by what has to be done for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountType {
    /// No file system yet: a loop device, for later mounts.
    Loop,
    /// A part of another file system.
    Bind,
    /// Directories over each other.
    Overlay,
    /// An image that newer kernels mount without a device.
    Erofs,
    /// A file system in a process, which a program of its own mounts.
    Fuse {
        /// The program.
        helper: &'static str,
        /// Its file system.
        name: String,
        /// Options, all for the program.
        options: Vec<String>,
    },
    /// Any other file system of the kernel.
    Other(String),
}

/// A place for a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The number of the mount that only serves later ones; none for the root file system.
    pub layer: Option<usize>,
    /// Where below that; empty for the place itself.
    pub below: String,
}

impl Plan {
    /// Whether anything has to be mounted beside the root file system.
    pub fn has_layers(&self) -> bool {
        self.steps.iter().any(|step| step.place.layer.is_some() || step.options.idmap.is_some())
    }
}

/// Plans a root file system.
///
/// All mounts before the last one with a prefix only serve later ones, and so do loop devices: that is how the mount
/// manager divides them (`Activate` in `core/mount/manager/manager.go` of containerd).
pub fn plan(mounts: &[Mount], roots: &Roots<'_>) -> Result<Plan, PlanError> {
    if mounts.len() > MOUNTS_MAX {
        return Err(PlanError::TooMany(mounts.len()));
    }
    let first = first_of_root(mounts);
    if first == mounts.len() && first > 0 {
        return Err(PlanError::NoRoot);
    }
    let mut planner =
        Planner { roots, active: Vec::new(), devices: Vec::new(), bytes_left: FILLED_BYTES_MAX };
    let number = |index| (index < first).then_some(index);
    let steps = mounts.iter().enumerate().map(|(index, mount)| planner.step(mount, number(index)));
    Ok(Plan { steps: steps.collect::<Result<_, _>>()? })
}

fn first_of_root(mounts: &[Mount]) -> usize {
    let after = |(index, mount): (usize, &Mount)| match mount.kind.rsplit_once('/') {
        _ if mount.kind == "loop" || mount.kind.ends_with("/loop") => index + 1,
        Some(_) => index,
        None => 0,
    };
    mounts.iter().enumerate().map(after).max().unwrap_or(0)
}

struct Planner<'a> {
    roots: &'a Roots<'a>,
    /// Mounts that templates may name.
    active: Vec<Active>,
    /// Which of them are loop devices.
    devices: Vec<bool>,
    bytes_left: usize,
}

impl Planner<'_> {
    fn step(&mut self, asked: &Mount, layer: Option<usize>) -> Result<Step, PlanError> {
        let mut mount = asked.clone();
        let (mut image, mut directories) = (None, Vec::new());
        let (prefixes, name) = prefixes(&asked.kind)?;
        for prefix in prefixes {
            match prefix {
                Prefix::Format => self.fill(&mut mount)?,
                Prefix::Mkdir => directories = transform::directories(&mut mount.options, self.roots)?,
                Prefix::Mkfs => {
                    image = Some(transform::image(&mount.source, &mut mount.options, self.roots)?);
                }
            }
        }
        let (mut options, texts) = Options::parse(&mount.options)?;
        let kind = MountType::of(name, &mount.options, options.set)
            .ok_or_else(|| refuse(&asked.kind, "it is not the name of a file system"))?;
        if name == "rbind" {
            options.set |= flag::REC;
        }
        let locate = |path: &str| {
            data::locate(path, self.roots, |index| self.devices.get(index).copied().unwrap_or(false))
        };
        let datum = |text: &String| match kind {
            MountType::Overlay => data::of_overlay(text, locate),
            MountType::Erofs => data::of_erofs(text, locate),
            MountType::Loop | MountType::Bind | MountType::Fuse { .. } | MountType::Other(_) => {
                Datum::Plain(text.clone())
            }
        };
        let data = texts.iter().map(datum).collect();
        let (source, place) = (locate(&mount.source), Place::of(layer, &mount.target)?);
        if let Some(index) = layer {
            self.devices.push(kind == MountType::Loop);
            let point = format!("{}/{index}", self.roots.layers);
            self.active.push(Active { source: mount.source, target: mount.target, point });
        }
        Ok(Step { image, directories, kind, source, options, data, place })
    }

    fn fill(&mut self, mount: &mut Mount) -> Result<(), PlanError> {
        let mut filler = Filler { active: &self.active, bytes_left: &mut self.bytes_left };
        mount.source = filler.fill(&mount.source)?;
        mount.target = filler.fill(&mount.target)?;
        for option in &mut mount.options {
            *option = filler.fill(option)?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    Format,
    Mkdir,
    Mkfs,
}

/// Takes the prefixes off a type, in the order in which they apply.
fn prefixes(kind: &str) -> Result<(Vec<Prefix>, &str), PlanError> {
    let mut prefixes = Vec::new();
    let mut rest = kind;
    while let Some((name, after)) = rest.split_once('/') {
        let prefix = match name {
            "format" => Prefix::Format,
            "mkdir" => Prefix::Mkdir,
            "mkfs" => Prefix::Mkfs,
            _ => return Err(refuse(kind, "only format, mkdir and mkfs may come before a slash")),
        };
        if prefixes.contains(&prefix) {
            return Err(refuse(kind, "a prefix comes twice"));
        }
        prefixes.push(prefix);
        rest = after;
    }
    Ok((prefixes, rest))
}

impl MountType {
    fn of(name: &str, options: &[String], flags: u64) -> Option<Self> {
        let fuse =
            |helper, name: &str| Self::Fuse { helper, name: name.to_owned(), options: options.to_vec() };
        // The helpers that containerd calls, too (`core/mount/mount_linux.go`).
        match name.split_once('.') {
            Some(("fuse", name)) if !name.is_empty() => return Some(fuse("mount.fuse", name)),
            Some(("fuse3", name)) if !name.is_empty() => return Some(fuse("mount.fuse3", name)),
            Some(_) | None => {}
        }
        match name {
            "loop" => Some(Self::Loop),
            "bind" | "rbind" => Some(Self::Bind),
            _ if flags & flag::BIND != 0 => Some(Self::Bind),
            "overlay" => Some(Self::Overlay),
            "erofs" => Some(Self::Erofs),
            _ => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
                (!name.is_empty() && name.bytes().all(plain)).then(|| Self::Other(name.to_owned()))
            }
        }
    }
}

impl Place {
    fn of(layer: Option<usize>, target: &str) -> Result<Self, PlanError> {
        let parts: Vec<&str> = target.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.contains(&"..") || target.contains('\0') {
            return Err(PlanError::Target(target.to_owned()));
        }
        Ok(Self { layer, below: parts.join("/") })
    }
}

fn refuse(kind: &str, why: &'static str) -> PlanError {
    PlanError::Kind { kind: kind.to_owned(), why }
}

#[cfg(test)]
mod tests;
