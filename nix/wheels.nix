# Which wheels of a lock go into which layer, and whether the images' Python can use them at all.
{
  pins,
  step,
  source,
}:
let
  inherit (builtins)
    any
    elem
    elemAt
    filter
    fromJSON
    head
    isString
    length
    match
    partition
    split
    substring
    stringLength
    tail
    ;

  splitOn = separator: text: filter isString (split separator text);

  # Python 3.13 on x86-64 with the glibc of Debian 13.
  python = 13;
  glibc = 41;

  number = text: fromJSON text;

  fitsPython =
    tag: abi:
    let
      exact = match "cp3([0-9]+)" tag;
      generic = match "(py2|py3|py3([0-9]+))" tag;
    in
    if exact != null then
      if abi == "abi3" then number (head exact) <= python else number (head exact) == python && elem abi [ "cp313" "none" ]
    else
      generic != null
      && elem abi [ "none" "abi3" ]
      && (elemAt generic 1 == null || number (elemAt generic 1) <= python)
      && tag != "py2";

  fitsPlatform =
    tag:
    let
      versioned = match "manylinux_2_([0-9]+)_x86_64" tag;
    in
    elem tag [
      "any"
      "linux_x86_64"
      "manylinux1_x86_64"
      "manylinux2010_x86_64"
      "manylinux2014_x86_64"
    ]
    || (versioned != null && number (head versioned) <= glibc);

  # Whether one of the tags that a wheel's file name stands for suits (PEP 425).
  fits =
    file:
    let
      stem = match "(.*)\\.whl" file;
      parts = splitOn "-" (head stem);
      tag = n: splitOn "\\." (elemAt parts (length parts - n));
    in
    stem != null
    && length parts >= 5
    && any (p: any (a: any (m: fitsPython p a && fitsPlatform m) (tag 1)) (tag 2)) (tag 3);

  require =
    package:
    if match ".*\\.whl" package.file == null || fits package.file then
      package
    else
      throw "locks/${package.set}.json: ${package.file} is a wheel for another Python or platform than CPython 3.${toString python} on x86_64 with glibc 2.${toString glibc}";

  setuptools = head (filter (p: p.name == "setuptools") (pins.pythonSet "nix-build").packages);

  # Members of wheels that are not installed, each with its reason there.
  leftOut = fromJSON (builtins.readFile (source + "/src/qualify/images/data/left-out.json"));

  # A wheel as a builder takes it; made from the sources where a package ships no wheel.
  pin =
    package:
    let
      unwanted = filter (entry: entry.package == package.name) leftOut;
    in
    (if unwanted == [ ] then { } else { left_out = map (entry: entry.path) unwanted; })
    // {
      inherit (package) name version;
      path =
        if match ".*\\.whl" package.file != null then
          package.path
        else
          "${
            step.run {
              name = "${package.name}-${package.version}";
              builder = "sdist_wheel";
              spec = {
                inherit (package) name version path;
                tools = [ setuptools.path ];
              };
            }
          }/wheel.whl";
    };

  startsWith = prefix: text: substring 0 (stringLength prefix) text == prefix;
  matches =
    pattern: name:
    let
      prefix = match "(.*)\\*" pattern;
    in
    if prefix == null then pattern == name else startsWith (head prefix) name;

  # Deals packages out to groups in order; the last group takes what is left. A pattern that matches
  # nothing is an error, so that a group cannot silently grow empty when a lock changes.
  deal =
    where: groups: packages:
    let
      group = head groups;
      chosen = partition (package: any (pattern: matches pattern package.name) group.names) packages;
      unused = filter (pattern: !(any (package: matches pattern package.name) packages)) group.names;
    in
    if tail groups == [ ] then
      [ { inherit (group) title; inherit packages; } ]
    else if unused != [ ] then
      throw "${where}: layer ${group.title}: no locked package is called ${head unused}"
    else
      [
        {
          inherit (group) title;
          packages = chosen.right;
        }
      ]
      ++ deal where (tail groups) chosen.wrong;
in
{
  inherit fits require deal pin;
}
