# The images: which pins each is made of, how it starts, and what its labels say.
{
  bootstrap,
  pins,
  step,
  layers,
  app,
  source,
  revision,
}:
let
  inherit (builtins)
    fromTOML
    listToAttrs
    mapAttrs
    readFile
    ;

  project = (fromTOML (readFile (source + "/pyproject.toml"))).project;

  environment = [
    "PATH=/usr/local/bin:/usr/bin"
    "HOME=/home/qualify"
    "LANG=C.UTF-8"
    "PYTHONDONTWRITEBYTECODE=1"
    "PYTHONNOUSERSITE=1"
    "PYTHONPATH=/opt/qualify/src"
    "QUALIFY_PROJECT=/opt/qualify"
  ];

  # What NVIDIA's container toolkit reads to decide what to mount, and where some installations mount
  # the driver's libraries instead of the usual folders. No driver library is in the image.
  cuda = [
    "NVIDIA_VISIBLE_DEVICES=all"
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
  ];

  launcher = [
    "/usr/bin/python3"
    "-P"
    "-m"
    "qualify.runtimes.launcher"
  ];

  vllmGroups = beside: [
    {
      title = "nvidia";
      names = [ "nvidia-*" ];
    }
    {
      title = "torch";
      names = [
        "torch*"
        "triton"
      ];
    }
    {
      title = "engine";
      names = [ "vllm*" ] ++ beside;
    }
    { title = "libraries"; }
  ];

  # Groups of wheels lie biggest and rarest to change first; the last takes what no other names.
  definitions = {
    runner = {
      description = "The qualify command with the agent and the llama.cpp engine";
      closure = "runner";
      sets = [ "runner" ];
      groups = [
        {
          title = "engine";
          names = [
            "duckdb"
            "numpy"
            "scipy"
            "xllamacpp"
          ];
        }
        { title = "libraries"; }
      ];
      runtime = null;
      env = [ "QUALIFY_RESULTS=/home/qualify/results" ];
      entrypoint = [ "/usr/bin/qualify" ];
      command = true;
    };
    llama-cpp-cpu = {
      description = "The llama.cpp engine for x86-64 processors and its launcher";
      closure = "llama-cpp-cpu";
      sets = [
        "llama-cpp-cpu"
        "launcher"
      ];
      groups = [
        {
          title = "engine";
          names = [ "xllamacpp" ];
        }
        { title = "libraries"; }
      ];
      runtime = "llama-cpp-cpu";
      env = [ ];
      entrypoint = launcher;
      command = false;
    };
    vllm-cpu = {
      description = "The vLLM engine for x86-64 processors and its launcher";
      closure = "vllm-cpu";
      sets = [ "vllm-cpu" ];
      groups = vllmGroups [ ];
      runtime = "vllm-0.32.0-cpu";
      env = [ ];
      entrypoint = launcher;
      command = false;
    };
    vllm-cu129 = {
      description = "The vLLM engine on CUDA 12.9 and its launcher";
      closure = "vllm-cuda";
      sets = [ "vllm-cu129" ];
      groups = vllmGroups [ "flashinfer-*" ];
      runtime = "vllm-0.19.1-cu129";
      env = cuda;
      entrypoint = launcher;
      command = false;
    };
    vllm-cu130 = {
      description = "The vLLM engine on CUDA 13.0 and its launcher";
      closure = "vllm-cuda";
      sets = [ "vllm-cu130" ];
      groups = vllmGroups [ "flashinfer-*" ];
      runtime = "vllm-0.33.0-cu130";
      env = cuda;
      entrypoint = launcher;
      command = false;
    };
  };

  pythonSets = image: map pins.pythonSet image.sets;

  # Everything but our own code.
  stableLayersOf =
    name: image:
    let
      more = layers.system image.closure;
    in
    [ layers.base ]
    ++ (if more == null then [ ] else [ more ])
    ++ layers.python {
      inherit name;
      inherit (image) groups;
      sets = pythonSets image;
    };

  layersOf =
    name: image:
    stableLayersOf name image ++ [ (layers.project { inherit (image) command; }) ];

  labelsOf =
    name: image:
    {
      "org.opencontainers.image.title" = "qualify-${name}";
      "org.opencontainers.image.description" = image.description;
      "org.opencontainers.image.licenses" = project.license;
      "org.opencontainers.image.version" = project.version;
      "org.opencontainers.image.revision" = revision;
      "org.opencontainers.image.source" = "file:///opt/qualify/src";
      "qualify.image" = name;
      "qualify.closure" = image.closure;
      "qualify.lock.debian" = pins.debian.digest;
    }
    // (if image.runtime == null then { } else { "qualify.runtime" = image.runtime; })
    // listToAttrs (
      map (set: {
        name = "qualify.lock.${set.set}";
        value = set.digest;
      }) (pythonSets image)
    );

  layoutOf =
    name: image:
    step.run {
      name = "layout-${name}";
      builder = "image_layout";
      spec = {
        inherit name;
        layers = layersOf name image;
        declarations = "${layers.project { inherit (image) command; }}/declarations";
        labels = labelsOf name image;
        config = {
          User = "10001:10001";
          Env = environment ++ image.env;
          Entrypoint = image.entrypoint;
          WorkingDir = "/home/qualify";
          StopSignal = "SIGTERM";
        };
      };
    };

  # The layout, with the bill of materials and the provenance beside its index.
  imageOf =
    name: image:
    bootstrap.shell {
      name = "image-${name}";
      layout = layoutOf name image;
      locks = layers.part "locks";
      inherit (app) environment project;
      script = ''
        cp -rP $layout $out
        chmod u+w $out
        export PYTHONPATH=$project/src PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 LC_ALL=C.UTF-8
        $environment/usr/bin/python3.13 -P -m qualify.images.beside $out $locks $out
      '';
    }
    // {
      meta.description = "OCI layout: ${image.description}";
    };

  # What has to be in the store before an image can be built, for `qualify image build` to look for: the
  # sets as `qualify depot fill` names them, and every file. The runner's are needed for each image,
  # because the qualify command writes the bill of materials.
  pinnedOf =
    image:
    let
      involved = [ definitions.runner ] ++ (if image == definitions.runner then [ ] else [ image ]);
      sets = builtins.concatMap (each: each.sets) involved ++ [ "nix-build" ];
      closures = map (each: each.closure) involved ++ [ "build" ];
      files =
        builtins.concatMap (set: (pins.pythonSet set).packages) sets
        ++ builtins.concatMap pins.debian.closure closures;
      path = pin: builtins.unsafeDiscardStringContext "${pin.path}";
    in
    {
      sets = sets ++ map (closure: "debian:${closure}") closures;
      paths =
        listToAttrs (
          map (pin: {
            name = path pin;
            value = pin.file;
          }) files
        )
        // {
          ${builtins.unsafeDiscardStringContext "${bootstrap.busybox}"} = "busybox-elf";
        };
    };
in
{
  layers = mapAttrs layersOf definitions;
  pinned = mapAttrs (_: pinnedOf) definitions;
  # Every set of wheels that an image or a builder needs.
  sets = [ "nix-build" ] ++ builtins.concatMap (image: image.sets) (builtins.attrValues definitions);
  stableLayers = mapAttrs stableLayersOf definitions;

  layouts = mapAttrs layoutOf definitions;

  packages = listToAttrs (
    map (name: {
      name = "image-${name}";
      value = imageOf name definitions.${name};
    }) (builtins.attrNames definitions)
  );
}
