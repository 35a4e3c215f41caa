# Runs one builder of src/qualify/images/building in the sandbox.
#
# Each step gets a folder with only the modules that it imports, so that a change of another module,
# or of anything else in src/, rebuilds nothing.
{
  system,
  bootstrap,
  source,
}:
let
  inherit (builtins) baseNameOf elem path;

  layerModules = [
    "gzip_stream.py"
    "layer_writer.py"
    "step.py"
  ];

  modulesOf = {
    debian_layer = layerModules ++ [
      "bytecode.py"
      "debian_layer.py"
      "debian_package.py"
    ];
    image_layout = layerModules ++ [ "image_layout.py" ];
    project_layer = layerModules ++ [
      "bytecode.py"
      "declared.py"
      "project_layer.py"
    ];
    sdist_wheel = layerModules ++ [ "sdist_wheel.py" ];
    store_tree = layerModules ++ [ "store_tree.py" ];
    wheel_layer = layerModules ++ [
      "bytecode.py"
      "wheel.py"
      "wheel_layer.py"
    ];
  };

  modules =
    builder:
    path {
      name = "${builder}-modules";
      path = source + "/src";
      filter =
        place: type:
        if type == "directory" then
          elem (baseNameOf place) [
            "qualify"
            "images"
            "building"
          ]
        else
          baseNameOf (dirOf place) == "building" && elem (baseNameOf place) modulesOf.${builder};
    };
in
{
  inherit modules;

  run =
    {
      name,
      builder,
      spec,
    }:
    derivation {
      inherit name system;
      builder = "${bootstrap.python}/usr/bin/python3.13";
      args = [
        "-P"
        "-s"
        "-S"
        "-m"
        "qualify.images.building.${builder}"
      ];
      # Nix starts a builder by its bare name; Python finds its own library through PATH.
      PATH = "${bootstrap.python}/usr/bin";
      PYTHONPATH = modules builder;
      PYTHONHASHSEED = "0";
      PYTHONDONTWRITEBYTECODE = "1";
      LC_ALL = "C.UTF-8";
      spec = builtins.toJSON spec;
      passAsFile = [ "spec" ];
    };
}
