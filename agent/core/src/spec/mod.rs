//! What a pod asks for, in the narrow form that the core works with. Built at the edge from the wire types; here nothing
//! is checked again.

mod container;
mod lifecycle;
mod object;
mod pod;
mod probe;
mod resources;
mod scheduling;
mod security;
mod volume;

pub use container::{
    Container, ContainerKind, EnvFrom, EnvSource, EnvVar, FileKeyRef, ImagePullPolicy, Mount,
    MountPropagation, ObjectKeyRef, OwnRestarts, Port, Protocol, RecursiveReadOnly, ResizePolicy,
    RestartAction, RestartRule, Stdin, Stdio, SubPath, TerminationMessage, TerminationMessagePolicy,
    VolumeDevice,
};
pub use lifecycle::{Hook, HookMoment, Lifecycle};
pub use object::{ObjectKey, ObjectKind};
pub use pod::{
    DnsConfig, DnsPolicy, Ended, HostAlias, IpcMode, NetworkMode, PidMode, Pod, ReadinessGate, Resize,
    RestartPolicy, Source, Sysctl, ToldRun, Unallocated, UserMode,
};
pub use probe::{HttpGet, Probe, ProbeHandler, ProbeKind, ProbePort, Probes};
pub use resources::{
    CpuMemory, QosClass, Quantities, Resizable, ResourceField, ResourceSelector, Resources, is_extended,
};
pub use scheduling::{NodeTerm, Operator, Requirement, Scheduling, Toleration, TolerationOperator};
pub use security::{
    AppArmorProfile, Capabilities, ContainerSecurity, FsGroupChange, PodSecurity, ProcMount, SeLinuxOptions,
    Seccomp, SupplementalGroupsPolicy,
};
pub use volume::{
    ClaimVolume, ContentKind, ContentVolume, DownwardFile, DownwardSource, HostPathType, KeyToPath, Medium,
    ObjectFiles, Projection, TokenFile, Volume, VolumeMode, VolumeSource,
};
