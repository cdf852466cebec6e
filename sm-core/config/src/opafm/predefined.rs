//! Applications and device groups that a file may reference without defining them: those of the
//! fabric manager's own default file. A definition in the file replaces them.

use super::section::{Raw, fragment};
use super::xml;

/// The definitions, as in an opafm.xml.
const DEFINITIONS: &str = "<Common><Applications>
<Application><Name>All</Name>
  <ServiceIDRange>0-0xffffffffffffffff</ServiceIDRange>
  <MGIDRange>0:0-0xffffffffffffffff:0xffffffffffffffff</MGIDRange>
  <Select>UnmatchedServiceID</Select><Select>UnmatchedMGID</Select></Application>
<Application><Name>SA</Name><Select>SA</Select></Application>
<Application><Name>PA</Name><ServiceID>0x1100d03c34845555</ServiceID></Application>
<Application><Name>PM</Name><Select>PM</Select></Application>
<Application><Name>IPv4</Name>
  <MGIDMasked>0xff00401b00000000:0*0xff00ffff0000ffff:0xffffffff00000000</MGIDMasked>
</Application>
<Application><Name>IPv6</Name>
  <MGIDMasked>0xff00601b00000000:0*0xff00ffff00000000:0</MGIDMasked></Application>
<Application><Name>IPoIBCM</Name>
  <ServiceIDMasked>0x1000000000000000*0xffffffffff000000</ServiceIDMasked></Application>
<Application><Name>RDS</Name><ServiceIDRange>0x1060000-0x106ffff</ServiceIDRange></Application>
<Application><Name>VerbsMPI</Name></Application>
<Application><Name>PSM_Control</Name>
  <ServiceIDRange>0x1000117500000000-0x1000117500000007</ServiceIDRange>
  <ServiceIDRange>0x1-0x7</ServiceIDRange></Application>
<Application><Name>PSM_Data</Name>
  <ServiceIDRange>0x1000117500000008-0x100011750000000f</ServiceIDRange>
  <ServiceIDRange>0x9-0xf</ServiceIDRange></Application>
<Application><Name>PSM</Name>
  <ServiceIDRange>0x1000117500000000-0x100011750000000f</ServiceIDRange>
  <ServiceIDRange>0x1-0xf</ServiceIDRange></Application>
<Application><Name>ibacm</Name>
  <MGIDMasked>0xff15400100000000:0*0xffffffff0000ff00:0x00ffffffffffffff</MGIDMasked>
</Application>
<Application><Name>iSER</Name><ServiceID>0x1060cbc</ServiceID></Application>
<Application><Name>Lustre</Name><ServiceID>0x10603db</ServiceID></Application>
<Application><Name>RDMA_Apps</Name>
<ServiceIDRange>0x1000000-0x1ffffff</ServiceIDRange></Application>
<Application><Name>Networking</Name>
  <IncludeApplication>IPv4</IncludeApplication><IncludeApplication>IPv6</IncludeApplication>
  <IncludeApplication>IPoIBCM</IncludeApplication><IncludeApplication>RDS</IncludeApplication>
</Application>
<Application><Name>Storage</Name>
  <IncludeApplication>iSER</IncludeApplication><IncludeApplication>Lustre</IncludeApplication>
</Application>
<Application><Name>Compute</Name>
  <IncludeApplication>VerbsMPI</IncludeApplication><IncludeApplication>PSM</IncludeApplication>
</Application>
<Application><Name>Tenant_Apps</Name>
  <IncludeApplication>Compute</IncludeApplication></Application>
<Application><Name>AllOthers</Name>
  <Select>UnmatchedServiceID</Select><Select>UnmatchedMGID</Select></Application>
</Applications><DeviceGroups>
<DeviceGroup><Name>All</Name><Select>All</Select></DeviceGroup>
<DeviceGroup><Name>AllFIs</Name><NodeType>FI</NodeType></DeviceGroup>
<DeviceGroup><Name>AllTFIs</Name><Select>TFIs</Select></DeviceGroup>
<DeviceGroup><Name>AllSWs</Name><NodeType>SW</NodeType></DeviceGroup>
<DeviceGroup><Name>AllSWE0s</Name><Select>SWE0</Select></DeviceGroup>
<DeviceGroup><Name>AllEndNodes</Name>
  <IncludeGroup>AllFIs</IncludeGroup><IncludeGroup>AllSWE0s</IncludeGroup></DeviceGroup>
<DeviceGroup><Name>HFIDirectConnect</Name><Select>HFIDirectConnect</Select></DeviceGroup>
<DeviceGroup><Name>AllMgmtAllowed</Name><Select>AllMgmtAllowed</Select></DeviceGroup>
<DeviceGroup><Name>Self</Name><Select>Self</Select></DeviceGroup>
</DeviceGroups></Common>";

/// Adds definitions that `raw` lacks.
pub(super) fn complete(raw: &mut Raw) {
    let root = xml::parse(DEFINITIONS).expect("the text above is well-formed");
    let all = fragment(&root).expect("the built-in text is valid");
    for application in all.applications {
        if raw.applications.iter().all(|known| known.name != application.name) {
            raw.applications.push(application);
        }
    }
    for group in all.device_groups {
        if raw.device_groups.iter().all(|known| known.name != group.name) {
            raw.device_groups.push(group);
        }
    }
}
