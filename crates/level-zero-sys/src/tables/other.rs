//! Tables of which memory needs nothing: names and places alone, so that a driver can answer for them.

tables! {
    /// Images.
    ze_image_dditable_t from zeGetImageProcAddrTable {
        0 pfnGetProperties = zeImageGetProperties;
        0 pfnCreate = zeImageCreate;
        0 pfnDestroy = zeImageDestroy;
        3 pfnGetAllocPropertiesExt = zeImageGetAllocPropertiesExt;
        5 pfnViewCreateExt = zeImageViewCreateExt;
    }
    /// Images, experimental.
    ze_image_exp_dditable_t from zeGetImageExpProcAddrTable {
        2 pfnGetMemoryPropertiesExp = zeImageGetMemoryPropertiesExp;
        2 pfnViewCreateExp = zeImageViewCreateExp;
        9 pfnGetDeviceOffsetExp = zeImageGetDeviceOffsetExp;
    }
    /// Modules.
    ze_module_dditable_t from zeGetModuleProcAddrTable {
        0 pfnCreate = zeModuleCreate;
        0 pfnDestroy = zeModuleDestroy;
        0 pfnDynamicLink = zeModuleDynamicLink;
        0 pfnGetNativeBinary = zeModuleGetNativeBinary;
        0 pfnGetGlobalPointer = zeModuleGetGlobalPointer;
        0 pfnGetKernelNames = zeModuleGetKernelNames;
        0 pfnGetProperties = zeModuleGetProperties;
        0 pfnGetFunctionPointer = zeModuleGetFunctionPointer;
        3 pfnInspectLinkageExt = zeModuleInspectLinkageExt;
    }
    /// Build logs of modules.
    ze_module_build_log_dditable_t from zeGetModuleBuildLogProcAddrTable {
        0 pfnDestroy = zeModuleBuildLogDestroy;
        0 pfnGetString = zeModuleBuildLogGetString;
    }
    /// Kernels.
    ze_kernel_dditable_t from zeGetKernelProcAddrTable {
        0 pfnCreate = zeKernelCreate;
        0 pfnDestroy = zeKernelDestroy;
        0 pfnSetCacheConfig = zeKernelSetCacheConfig;
        0 pfnSetGroupSize = zeKernelSetGroupSize;
        0 pfnSuggestGroupSize = zeKernelSuggestGroupSize;
        0 pfnSuggestMaxCooperativeGroupCount = zeKernelSuggestMaxCooperativeGroupCount;
        0 pfnSetArgumentValue = zeKernelSetArgumentValue;
        0 pfnSetIndirectAccess = zeKernelSetIndirectAccess;
        0 pfnGetIndirectAccess = zeKernelGetIndirectAccess;
        0 pfnGetSourceAttributes = zeKernelGetSourceAttributes;
        0 pfnGetProperties = zeKernelGetProperties;
        0 pfnGetName = zeKernelGetName;
    }
    /// Kernels, experimental.
    ze_kernel_exp_dditable_t from zeGetKernelExpProcAddrTable {
        1 pfnSetGlobalOffsetExp = zeKernelSetGlobalOffsetExp;
        2 pfnSchedulingHintExp = zeKernelSchedulingHintExp;
        11 pfnGetBinaryExp = zeKernelGetBinaryExp;
        14 pfnGetAllocationPropertiesExp = zeKernelGetAllocationPropertiesExp;
    }
    /// Samplers.
    ze_sampler_dditable_t from zeGetSamplerProcAddrTable {
        0 pfnCreate = zeSamplerCreate;
        0 pfnDestroy = zeSamplerDestroy;
    }
    /// Builders of ray tracing structures.
    ze_rtas_builder_dditable_t from zeGetRTASBuilderProcAddrTable {
        13 pfnCreateExt = zeRTASBuilderCreateExt;
        13 pfnGetBuildPropertiesExt = zeRTASBuilderGetBuildPropertiesExt;
        13 pfnBuildExt = zeRTASBuilderBuildExt;
        13 pfnCommandListAppendCopyExt = zeRTASBuilderCommandListAppendCopyExt;
        13 pfnDestroyExt = zeRTASBuilderDestroyExt;
    }
    /// Builders of ray tracing structures, experimental.
    ze_rtas_builder_exp_dditable_t from zeGetRTASBuilderExpProcAddrTable {
        7 pfnCreateExp = zeRTASBuilderCreateExp;
        7 pfnGetBuildPropertiesExp = zeRTASBuilderGetBuildPropertiesExp;
        7 pfnBuildExp = zeRTASBuilderBuildExp;
        7 pfnDestroyExp = zeRTASBuilderDestroyExp;
    }
    /// Parallel building.
    ze_rtas_parallel_operation_dditable_t from zeGetRTASParallelOperationProcAddrTable {
        13 pfnCreateExt = zeRTASParallelOperationCreateExt;
        13 pfnGetPropertiesExt = zeRTASParallelOperationGetPropertiesExt;
        13 pfnJoinExt = zeRTASParallelOperationJoinExt;
        13 pfnDestroyExt = zeRTASParallelOperationDestroyExt;
    }
    /// Parallel building, experimental.
    ze_rtas_parallel_operation_exp_dditable_t from zeGetRTASParallelOperationExpProcAddrTable {
        7 pfnCreateExp = zeRTASParallelOperationCreateExp;
        7 pfnGetPropertiesExp = zeRTASParallelOperationGetPropertiesExp;
        7 pfnJoinExp = zeRTASParallelOperationJoinExp;
        7 pfnDestroyExp = zeRTASParallelOperationDestroyExp;
    }
    /// Vertices of the fabric.
    ze_fabric_vertex_exp_dditable_t from zeGetFabricVertexExpProcAddrTable {
        4 pfnGetExp = zeFabricVertexGetExp;
        4 pfnGetSubVerticesExp = zeFabricVertexGetSubVerticesExp;
        4 pfnGetPropertiesExp = zeFabricVertexGetPropertiesExp;
        4 pfnGetDeviceExp = zeFabricVertexGetDeviceExp;
    }
    /// Edges of the fabric.
    ze_fabric_edge_exp_dditable_t from zeGetFabricEdgeExpProcAddrTable {
        4 pfnGetExp = zeFabricEdgeGetExp;
        4 pfnGetVerticesExp = zeFabricEdgeGetVerticesExp;
        4 pfnGetPropertiesExp = zeFabricEdgeGetPropertiesExp;
    }
    /// Recorded graphs.
    ze_graph_dditable_t from zeGetGraphProcAddrTable {
        17 pfnCreateExt = zeGraphCreateExt;
        17 pfnGetPrimaryCommandListExt = zeGraphGetPrimaryCommandListExt;
        17 pfnSetDestructionCallbackExt = zeGraphSetDestructionCallbackExt;
        17 pfnInstantiateExt = zeGraphInstantiateExt;
        17 pfnIsEmptyExt = zeGraphIsEmptyExt;
        17 pfnDumpContentsExt = zeGraphDumpContentsExt;
        17 pfnDestroyExt = zeGraphDestroyExt;
    }
    /// Graphs that can be executed.
    ze_executable_graph_dditable_t from zeGetExecutableGraphProcAddrTable {
        17 pfnGetSourceGraphExt = zeExecutableGraphGetSourceGraphExt;
        17 pfnDestroyExt = zeExecutableGraphDestroyExt;
    }
}
